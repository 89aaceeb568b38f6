// fairness_test.mjs: 64 streams at once, a long prompt beside them, large bodies in between: the longest silence of
// anyone, and how far the others got meanwhile. usage: node fairness_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { loadavg } from 'node:os';
import { ask, ownClock, post, run, serve, sleep } from './support.mjs';

const server = await serve('--lanes', '64', '--queue', '32');
const endless = (more = {}) => ask('Tell me a short story about a cat.', { logit_bias: { 1: -100 }, stream: true, logprobs: true, ...more });
const SILENCE = 2000; // ms, of processors that are there for the server
const TURNS = 11;     // how many more of its 40 tokens any other stream may get than one gets between two turns of this process
                      // at all of them (exact turns: tests/engine/schedule_test.c)
const now = ownClock(server);
const wall = () => performance.now();
const seconds = (ms) => (ms / 1e3).toFixed(2);

// Reads a stream. Of the time between two of its pieces, the first one apart: the longest, by both clocks, and the
// tokens that another stream of `all` got ahead meanwhile: judged when everything that has come for anyone is read, for a
// client that is late itself finds several pieces of each, and a server that is late puts several tokens into one.
async function listen(body, all = []) {
    const me = { tokens: 0, silence: 0, wall: 0, overtaken: 0 };
    let last, before, due = false, rest = '';
    const judge = () => {
        if (before) for (const [other, had] of before.others) me.overtaken = Math.max(me.overtaken, other.tokens - had - (me.tokens - before.tokens));
        before = { tokens: me.tokens, others: all.map((s) => [s, s.tokens]) };
        due = false;
    };
    all.push(me);
    const r = await post(server, '/v1/chat/completions', body);
    assert.equal(r.status, 200);
    for await (const bytes of r.body) {
        const told = (rest + Buffer.from(bytes).toString('latin1')).split('"logprob":'), tokens = told.length - 1;
        rest = told.at(-1).slice(-9); // a token may be told in two parts
        if (!tokens) continue;
        const here = { own: now(), wall: wall() };
        if (last) {
            me.silence = Math.max(me.silence, here.own - last.own);
            me.wall = Math.max(me.wall, here.wall - last.wall);
        } else {
            me.first = here.wall;
        }
        last = here;
        me.tokens += tokens;
        if (!due) setImmediate(judge);
        due = true;
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
        console.log(`# longest silence ${seconds(most('silence'))} s (${seconds(most('wall'))} s of a clock on the wall, load ${loadavg()[0].toFixed(1)}), others got ${most('overtaken')} tokens ahead at most meanwhile, ` +
            `slowest first token ${seconds(most('first') - start)} s, long prompt's ${seconds(after.first - asked)} s, all ${seconds(wall() - start)} s, /health at most ${slowest.toFixed(0)} ms, ${(server.rss() / 1e6).toFixed(0)} MB`);
        assert.ok(all.every((s) => s.tokens === 40));
        assert.ok(most('silence') < SILENCE, `silent for ${most('silence')} ms`);
        assert.ok(most('overtaken') <= TURNS, `another stream got ${most('overtaken')} tokens ahead meanwhile`);
        assert.ok(slowest < SILENCE / 4, `/health took ${slowest} ms`);
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
