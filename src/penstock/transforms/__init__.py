"""Transforms of single messages, written in JavaScript."""

from penstock.transforms.sandbox import Limits, Sandbox
from penstock.transforms.transform import (
    Chain,
    Step,
    Transform,
    Transformed,
    compile_chain,
    compile_transform,
)

__all__ = [
    "Chain",
    "Limits",
    "Sandbox",
    "Step",
    "Transform",
    "Transformed",
    "compile_chain",
    "compile_transform",
]
