"""The paper's tables and figures, rerun: what is in them, the runs, a ledger of them, reports."""
