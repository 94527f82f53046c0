"""Remedies: what to do now. Data only: intents with the forms that achieve them by vLLM release, and their arithmetic.

This room knows knobs and releases; it knows no causes. A cause names the remedies that fit it (see `lifesign.causes`).
"""
