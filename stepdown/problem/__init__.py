"""Records as decisions: what good care means, and the hours that it is judged by."""
