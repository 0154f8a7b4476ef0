"""Presentation: progress bars, HTML and OpenMetrics text."""
