"""Declares, parses and resolves the settings of any system. Nothing here imports JAX."""

from jaxrl_dist.settings.fields import OURS, Cited, Field, cited, setting

__all__ = ["OURS", "Cited", "Field", "cited", "setting"]
