from aiohttp import web
import orjson
class Server:
    def __init__(s, settings, status, metrics): s.s=settings; s.status=status
    async def start(s):
        app=web.Application(); app.router.add_get("/status", lambda r: s._st(r))
        s.r=web.AppRunner(app,access_log=None); await s.r.setup(); await web.TCPSite(s.r,s.s.host,s.s.port).start()
    async def _st(s,r): return web.Response(body=orjson.dumps(s.status()),content_type="application/json")
    async def stop(s): await s.r.cleanup()
