"""Tasks made by machine: seeds mined, composed, filtered by execution, decontaminated, exported."""
