"""The tier on Spark: what plans and reads lives below, what names pyspark lives here."""
