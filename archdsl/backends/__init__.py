"""What a Model is lowered to."""
