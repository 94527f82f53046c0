"""A small stand-in for vLLM: an API server, an EngineCore and workers as real processes, with vLLM's way of dying.

It starts in well under a second, needs no vLLM and no model, and writes logs in the shape of a chosen release. What is real:
the processes, the pipes, the RPC with its time limit, signals, exit codes, HTTP. What isn't: the model (tokens are made up),
and source positions in tracebacks, which are those of the release where we had a log to read them from, else of a near one.
`python -m lifesign.drill.fake --help` starts one by hand.
"""
