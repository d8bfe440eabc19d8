"""Recording: what was called, with what, as integers; nothing here knows a schedule or a framework."""
