"""What a broker loads: the tiered store and the parts that feed, read and tend it."""
