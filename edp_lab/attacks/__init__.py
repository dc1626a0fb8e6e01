"""Attacks on what was trained, and audits of what a mechanism promises."""
