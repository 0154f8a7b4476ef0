"""Pages about a directory of tables in the browser, and the same as one file.

    import kudulite.ui
    application = kudulite.ui.app(client)     an ASGI application, to run or to mount in a service
    text = kudulite.ui.report(client)         one HTML file

The packages of the extra `ui` are needed: starlette, jinja2, uvicorn.
"""

from kudulite.ui.pages import app
from kudulite.ui.static_report import report

__all__ = ["app", "report"]
