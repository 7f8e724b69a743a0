"""What has no domain: errors, units, formulas' contract, the ledger, the row schema and its readers."""
