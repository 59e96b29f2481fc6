"""How a setting is declared, parsed and resolved, whatever system it belongs to. Nothing here imports JAX."""

from jaxrl_dist.settings.fields import OURS, Cited, Field, cited, setting

__all__ = ["OURS", "Cited", "Field", "cited", "setting"]
