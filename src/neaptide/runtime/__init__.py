"""At each call: sizes to a plan (cached), the plan's pieces run, what is alive kept in a ledger."""
