"""The ReAct loop, its tools, and the policies that choose actions."""
