"""Reads finished runs: pictures, tables, comparisons, pages."""
