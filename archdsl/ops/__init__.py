"""The primitives: one file each, named as the primitive is spelled. They are found, never listed."""
