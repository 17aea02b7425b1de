"""The what-if screen's back end: pure gates and forecasts, a ledger, an audit, a thin server."""
