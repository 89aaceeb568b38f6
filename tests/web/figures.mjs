// figures.mjs: the server's figures for docs/numbers.md; not a test. What HTTP costs is processor time of its thread
// beside that of all the others, so that other processes on the machine do not count.
// usage: node tests/web/figures.mjs BUILD
import { readdirSync, readFileSync } from 'node:fs';
import { loadavg } from 'node:os';
import { ask, post, raw, serve } from './support.mjs';

const server = await serve('--lanes', '8');
const pid = server.child.pid;
const cpu = () => { // seconds on a processor: the thread of the connections, all others
    let http = 0, others = 0;
    for (const tid of readdirSync(`/proc/${pid}/task`)) {
        const ns = Number(readFileSync(`/proc/${pid}/task/${tid}/schedstat`, 'utf8').split(' ')[0]);
        if (Number(tid) === pid) http += ns; else others += ns;
    }
    return { http: http / 1e9, others: others / 1e9 };
};
const say = (what, figure) => console.log(`${what}: ${figure}`);
async function measure(work) {
    const a = cpu(), start = performance.now();
    const n = await work();
    const b = cpu(), s = (performance.now() - start) / 1e3;
    return { n, s, http: b.http - a.http, others: b.others - a.others };
}

console.log(`# load average ${loadavg().map((x) => x.toFixed(1)).join(' ')}`);
const one = 'GET /health HTTP/1.1\r\nHost: a\r\n\r\n', last = 'GET /health HTTP/1.1\r\nConnection: close\r\n\r\n';
await raw(server, one.repeat(500) + last);
let m = await measure(async () => { for (let i = 0; i < 10; i++) await raw(server, one.repeat(999) + last, { ms: 60000 }); return 10000; });
say('/health, pipelined', `${(m.n / m.s).toFixed(0)}/s; ${(1e6 * m.http / m.n).toFixed(1)} us of processor time each = ${(m.n / m.http).toFixed(0)}/s of one core`);

const story = ask('Tell me a short story about a cat.', { logit_bias: { 1: -100 } });
const bare = await (await post(server, '/v1/chat/completions', { ...story, max_tokens: 60 })).json();
m = await measure(async () => { for (let i = 0; i < 60; i++) await (await post(server, '/v1/chat/completions', { ...story, max_tokens: 1 })).text(); return 60; });
say('1-token completions, one after the other', `${(m.n / m.s).toFixed(1)}/s beside ${bare.timings.decode_tok_s.toFixed(1)} tokens/s of decoding; thread of the connections ${(1e6 * m.http / m.n).toFixed(0)} us each, ${(100 * m.http / (m.http + m.others)).toFixed(2)} % of the processor time`);

for (const streams of [1, 8]) {
    m = await measure(async () => {
        const all = await Promise.all(Array.from({ length: streams }, async () => (await (await post(server, '/v1/chat/completions', { ...story, stream: true, max_tokens: 320 / streams })).text()).split('\n\n').length));
        return all.length * 320 / streams;
    });
    say(`${streams} stream(s) of ${320 / streams} tokens`, `${(1e6 * m.http / m.n).toFixed(0)} us of the connections' thread per token, ${(100 * m.http / (m.http + m.others)).toFixed(2)} % of the processor time`);
}

const turns = [];
for (let i = 0; i < 3; i++) {
    const messages = [{ role: 'user', content: `${i} What is a duck? `.repeat(180) }];
    const cold = await (await post(server, '/v1/chat/completions', { messages, temperature: 0, max_tokens: 8 })).json();
    messages.push({ role: 'assistant', content: cold.choices[0].message.content }, { role: 'user', content: 'What is a goose?' });
    const warm = await (await post(server, '/v1/chat/completions', { messages, temperature: 0, max_tokens: 8 })).json();
    turns.push(`${cold.timings.ttft_ms.toFixed(0)} ms of ${cold.usage.prompt_tokens} tokens / ${warm.timings.ttft_ms.toFixed(0)} ms of ${warm.usage.prompt_tokens} with ${warm.usage.prompt_tokens_details.cached_tokens} cached = ${(100 * warm.timings.ttft_ms / cold.timings.ttft_ms).toFixed(1)} %`);
}
say('TTFT, cold prompt / second turn', turns.join('; '));
say('resident', `${(server.rss() / 1e6).toFixed(0)} MB`);
console.log(`# load average ${loadavg().map((x) => x.toFixed(1)).join(' ')}`);
await server.stop();
