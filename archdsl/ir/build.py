"""Syntax -> IR: the elaborator, put together from its parts (see `archdsl.ir.elaborate`)."""

from __future__ import annotations

from archdsl.ir.elaborate.blocks import Blocks
from archdsl.ir.elaborate.bodies import Bodies
from archdsl.ir.elaborate.calls import Calls
from archdsl.ir.elaborate.defaults import Defaults
from archdsl.ir.elaborate.expressions import Expressions
from archdsl.ir.elaborate.functions import Functions
from archdsl.ir.elaborate.loops import Loops
from archdsl.ir.elaborate.names import Names
from archdsl.ir.elaborate.primitives import Primitives
from archdsl.ir.elaborate.root import Root
from archdsl.ir.elaborate.signatures import Signatures
from archdsl.ir.elaborate.statements import Statements


class Elaborator(
    Root, Statements, Loops, Bodies, Blocks, Defaults, Signatures, Primitives, Calls, Functions, Expressions, Names
):
    """Builds one model of a program: `Elaborator(module).build(name, overrides)`. An elaborator builds once."""
