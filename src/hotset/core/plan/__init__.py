"""From a model and a machine to the settings of one start, with reasons."""

from __future__ import annotations

from hotset.core.plan.solve import make_plan
from hotset.core.plan.types import Footprint, Plan, Speed, Wishes

__all__ = ["Footprint", "Plan", "Speed", "Wishes", "make_plan"]
