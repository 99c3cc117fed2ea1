"""`python -m archdsl`"""

from archdsl.cli import main

if __name__ == "__main__":
    main()
