"""Reading: what answers questions about messages from the tier, through one shared cache."""
