"""Report: ranks findings, chooses the verdict, renders it (terminal, JSON, Markdown, HTML, SARIF), makes the book."""
