"""``cuda-agent serve``: the local pool over HTTP. Needs the extra ``serve`` (FastAPI, uvicorn)."""
