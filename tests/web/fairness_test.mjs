// fairness_test.mjs: 64 streams at once, a long prompt beside them, large bodies in between: the longest silence of
// anyone. usage: node fairness_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { cpus, loadavg } from 'node:os';
import { ask, post, run, serve, sleep } from './support.mjs';

const server = await serve('--lanes', '64', '--queue', '32');
const endless = (more = {}) => ask('Tell me a short story about a cat.', { logit_bias: { 1: -100 }, stream: true, ...more });
// On cores that nobody else uses; where others want them too, everybody waits that much longer.
const calm = 2 * Math.max(1, loadavg()[0] / cpus().length);

// Reads a stream; the longest time between two pieces of text, the first one apart.
async function listen(body) {
    const r = await post(server, '/v1/chat/completions', body);
    assert.equal(r.status, 200);
    let first = 0, last = 0, silence = 0, tokens = 0;
    for await (const bytes of r.body) {
        const pieces = Buffer.from(bytes).toString().split('\n\n').filter((e) => e.startsWith('data: {') && /"content":"[^"]/.test(e)).length;
        if (!pieces) continue;
        const now = performance.now();
        if (last) silence = Math.max(silence, now - last); else first = now;
        last = now;
        tokens += pieces;
    }
    return { first, silence, tokens };
}

const failed = await run({
    async '64 streams, a long prompt and large bodies: nobody is silent for long'() {
        const start = performance.now();
        let slowest = 0, stop = false;
        const pulse = (async () => {
            while (!stop) {
                const t = performance.now();
                await (await fetch(`${server.url}/health`)).text();
                slowest = Math.max(slowest, performance.now() - t);
                await sleep(50);
            }
        })();
        const streams = Array.from({ length: 63 }, () => listen(endless({ max_tokens: 20 })));
        await sleep(1500);
        const long = listen(endless({ messages: [{ role: 'user', content: 'What is a duck? '.repeat(380) }], max_tokens: 5 }));
        const large = Array.from({ length: 3 }, () => post(server, '/v1/chat/completions', ask('duck goose '.repeat(600000))));
        for (const r of await Promise.all(large)) assert.equal(r.status, 400);
        const all = await Promise.all(streams), after = await long;
        stop = true;
        await pulse;
        const silence = Math.max(...all.map((s) => s.silence));
        console.log(`# longest silence ${(silence / 1e3).toFixed(2)} s, slowest first token ${((Math.max(...all.map((s) => s.first)) - start) / 1e3).toFixed(2)} s, ` +
            `long prompt's ${((after.first - start - 1500) / 1e3).toFixed(2)} s, all ${((performance.now() - start) / 1e3).toFixed(1)} s, /health at most ${slowest.toFixed(0)} ms, ${(server.rss() / 1e6).toFixed(0)} MB, load ${loadavg()[0].toFixed(1)}`);
        assert.ok(all.every((s) => s.tokens >= 10));
        assert.ok(silence < 1e3 * calm, `silent for ${silence} ms`);
        assert.ok(slowest < 500 * calm, `/health took ${slowest} ms`);
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
