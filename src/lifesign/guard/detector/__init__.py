"""The pure core that answers "is it dead, or merely slow?": no clock, no file, no process is read in here.

The same core runs in the guard, in `lifesign watch`, inside the vLLM plugin, in the simulator and in the replay of a
recorded event stream. Import the modules directly (`policy`, `beacon`, `core`, ...); this file stays empty so that an
engine pays only for what it uses.
"""
