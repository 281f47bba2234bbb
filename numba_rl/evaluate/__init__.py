"""The verdict: playing policies over ranges they were not trained on, figures, statistics, and the report."""
