"""Syntax -> IR: the elaborator, put together from its parts (see `archdsl.frontend`)."""

from __future__ import annotations

from archdsl.frontend.blocks import Blocks
from archdsl.frontend.bodies import Bodies
from archdsl.frontend.calls import Calls
from archdsl.frontend.defaults import Defaults
from archdsl.frontend.expressions import Expressions
from archdsl.frontend.functions import Functions
from archdsl.frontend.loops import Loops
from archdsl.frontend.names import Names
from archdsl.frontend.primitives import Primitives
from archdsl.frontend.root import Root
from archdsl.frontend.signatures import Signatures
from archdsl.frontend.statements import Statements


class Elaborator(
    Root, Statements, Loops, Bodies, Blocks, Defaults, Signatures, Primitives, Calls, Functions, Expressions, Names
):
    """Builds one model of a program: `Elaborator(module).build(name, overrides)`. An elaborator builds once."""
