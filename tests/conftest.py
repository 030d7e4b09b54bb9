"""Fixtures that more than one room's tests share."""

from __future__ import annotations
