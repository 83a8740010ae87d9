"""A stand-in for GitHub's REST API: it keeps state, checks tokens, and holds both sides to GitHub's own description."""
