"""Jobs on a whole tier: plan, items, result rows, finish; engines are threads or Spark."""
