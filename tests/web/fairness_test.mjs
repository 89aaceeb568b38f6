// fairness_test.mjs: 64 streams at once, a long prompt beside them, large bodies in between: the longest silence of
// anyone, and how far the others got meanwhile. usage: node fairness_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { loadavg } from 'node:os';
import { ask, ownClock, post, run, serve, sleep } from './support.mjs';

const server = await serve('--lanes', '64', '--queue', '32');
const endless = (more = {}) => ask('Tell me a short story about a cat.', { logit_bias: { 1: -100 }, stream: true, ...more });
const SILENCE = 2000; // ms, of processors that are there for the server
const TURNS = 12;     // pieces that any other stream may get while one gets none: of the 40 it asks for; the client reads
                      // a few rounds at once when it is late itself (exact turns: tests/engine/schedule_test.c)
const now = ownClock(server);
const wall = () => performance.now();
const seconds = (ms) => (ms / 1e3).toFixed(2);

// Reads a stream. Of the time between two of its pieces, the first one apart: the longest, by both clocks, and the
// most that another stream of `all` got meanwhile.
async function listen(body, all = []) {
    const me = { pieces: 0, silence: 0, wall: 0, overtaken: 0 };
    all.push(me);
    const r = await post(server, '/v1/chat/completions', body);
    assert.equal(r.status, 200);
    let last, others;
    for await (const bytes of r.body) {
        const pieces = Buffer.from(bytes).toString().split('\n\n').filter((e) => e.startsWith('data: {') && /"content":"[^"]/.test(e)).length;
        if (!pieces) continue;
        const here = { own: now(), wall: wall() };
        if (last) {
            me.silence = Math.max(me.silence, here.own - last.own);
            me.wall = Math.max(me.wall, here.wall - last.wall);
            for (const [other, had] of others) me.overtaken = Math.max(me.overtaken, other.pieces - had);
        } else {
            me.first = here.wall;
        }
        last = here;
        me.pieces += pieces;
        others = all.map((s) => [s, s.pieces]);
    }
    return me;
}

const failed = await run({
    async '64 streams, a long prompt and large bodies: nobody is silent for long'() {
        const start = wall(), all = [];
        let slowest = 0, stop = false;
        const pulse = (async () => {
            while (!stop) {
                const t = now();
                await (await fetch(`${server.url}/health`)).text();
                slowest = Math.max(slowest, now() - t);
                await sleep(50);
            }
        })();
        const streams = Array.from({ length: 63 }, () => listen(endless({ max_tokens: 40 }), all));
        await sleep(1500);
        const asked = wall();
        const long = listen(endless({ messages: [{ role: 'user', content: 'What is a duck? '.repeat(380) }], max_tokens: 5 }));
        const large = Array.from({ length: 3 }, () => post(server, '/v1/chat/completions', ask('duck goose '.repeat(600000))));
        for (const r of await Promise.all(large)) assert.equal(r.status, 400);
        await Promise.all(streams);
        const after = await long;
        stop = true;
        await pulse;
        const most = (key) => Math.max(...all.map((s) => s[key]));
        console.log(`# longest silence ${seconds(most('silence'))} s (${seconds(most('wall'))} s of a clock on the wall, load ${loadavg()[0].toFixed(1)}), others got ${most('overtaken')} pieces at most meanwhile, ` +
            `slowest first token ${seconds(most('first') - start)} s, long prompt's ${seconds(after.first - asked)} s, all ${seconds(wall() - start)} s, /health at most ${slowest.toFixed(0)} ms, ${(server.rss() / 1e6).toFixed(0)} MB`);
        assert.ok(all.every((s) => s.pieces >= 20));
        assert.ok(most('silence') < SILENCE, `silent for ${most('silence')} ms`);
        assert.ok(most('overtaken') <= TURNS, `another stream got ${most('overtaken')} pieces meanwhile`);
        assert.ok(slowest < SILENCE / 4, `/health took ${slowest} ms`);
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
