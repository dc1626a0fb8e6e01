"""Studies: compare runs, reproduce the paper's tables, judge its claims."""
