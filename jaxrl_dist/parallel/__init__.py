"""Layouts: how data moves between environments, replay and learners; no layout names an agent."""
