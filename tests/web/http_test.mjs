// http_test.mjs: the server from outside, byte by byte where it matters. usage: node http_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import net from 'node:net';
import { ask, build, endlessModel, events, launch, ownClock, post, raw, run, serve, sleep, until } from './support.mjs';

const server = await serve('--lanes', '2', '--queue', '2', '--request-timeout', '2', '--idle-timeout', '3', '--max-body', '1',
    '--cors', 'https://chat.example', '--connections', '40');
const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const count = (text, what) => text.split(what).length - 1;
const metrics = async (of = server) => (await fetch(`${of.url}/metrics.json`)).json();
const idle = (of = server) => until('nothing runs or waits', async () => { const m = await metrics(of); return m.running + m.waiting === 0; });
const chat = (body, options, to = server) => post(to, '/v1/chat/completions', body, options);
const endless = (more = {}) => ask('Tell me a short story about a cat.', { logit_bias: { 1: -100 }, ...more });

// Runs a case on a server whose endless answers do not end before the case does.
async function onEndless(test) {
    const other = await serve('--model', endlessModel(), '--lanes', '2', '--queue', '2');
    try {
        await test(other, (more) => endless({ max_tokens: 100000, ...more }));
    } finally {
        await other.stop('SIGKILL');
    }
}

async function refused(body, status, pattern, path = '/v1/chat/completions') {
    const r = await post(server, path, body);
    const { error } = await r.json();
    assert.equal(r.status, status, JSON.stringify(error));
    assert.deepEqual(Object.keys(error), ['message', 'type', 'param', 'code']);
    assert.match(`${error.message} | ${error.type} | ${error.param} | ${error.code}`, pattern);
}

const cases = {
    async 'what can be asked without a body'() {
        for (const prefix of ['', '/v1']) {
            assert.equal((await fetch(`${server.url}${prefix}/health`)).status, 200);
            const models = await (await fetch(`${server.url}${prefix}/models`)).json();
            assert.equal(models.data[0].id, 'duckling');
            for (const path of ['/models/duckling', '/models/duckling/', '/models/', '/models/%64uck%6Cing?x']) assert.equal((await fetch(`${server.url}${prefix}${path}`)).status, 200, path);
            assert.equal((await (await fetch(`${server.url}${prefix}/models/other`)).json()).error.code, 'model_not_found');
        }
        const page = await fetch(`${server.url}/?x=1`);
        assert.match(page.headers.get('content-type'), /^text\/html/);
        assert.match(await (await fetch(`${server.url}/metrics`)).text(), /\nduckd_duck_steps_total\{duck="[^"]+"\} \d+\n/);
        assert.equal((await fetch(`${server.url}/health`, { method: 'HEAD' })).status, 200);
    },
    async 'metrics are well formed, and say where lanes were'() {
        const families = async () => {
            const found = {}, seen = new Set();
            const text = await (await fetch(`${server.url}/metrics`)).text();
            assert.ok(text.endsWith('\n'));
            let family;
            for (const line of text.trimEnd().split('\n')) {
                const help = line.match(/^# HELP (\w+) \S.*$/), type = line.match(/^# TYPE (\w+) (\w+)$/);
                if (help) { family = { name: help[1], samples: [] }; assert.ok(!found[family.name], `${family.name} twice`); found[family.name] = family; continue; }
                if (type) { assert.equal(type[1], family.name); family.type = type[2]; continue; }
                const [, name, labels = '', value] = line.match(/^(\w+)(\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})? (\S+)$/) ?? assert.fail(line);
                assert.equal(family.type === 'histogram' ? name.replace(/_(bucket|sum|count)$/, '') : name, family.name);
                assert.ok(!seen.has(name + labels), `${name}${labels} twice`);
                seen.add(name + labels);
                assert.ok(Number.isFinite(Number(value)), line);
                family.samples.push({ name, labels, value: Number(value) });
            }
            for (const f of Object.values(found)) {
                assert.match(f.name, /^duckd_[a-z_0-9]+$/);
                assert.equal(f.type === 'counter', f.name.endsWith('_total'), `${f.name} is a ${f.type}`);
                assert.ok(!/_(ms|ns|us|mb|gb|percent)(_|$)/.test(f.name), `${f.name}: base units`);
                if (f.type !== 'histogram') continue;
                const buckets = f.samples.filter((s) => s.name.endsWith('_bucket')).map((s) => s.value);
                assert.deepEqual(buckets, [...buckets].sort((a, b) => a - b));
                assert.equal(buckets.at(-1), f.samples.find((s) => s.name.endsWith('_count')).value);
            }
            return found;
        };
        const lanes = (f) => [0, 1].map((lane) => Object.fromEntries(f.duckd_lane_seconds_total.samples.filter((s) => s.labels.includes(`lane="${lane}"`)).map((s) => [s.labels.match(/state="(\w+)"/)[1], s.value])));
        const sum = (l) => l.backend + l.flock + l.idle;
        const before = await families();
        const [quiet] = lanes(before);
        await sleep(400); // timers may be early
        assert.ok(lanes(await families())[0].idle >= quiet.idle + 0.3, 'idle time goes on while nothing happens');
        const r = await (await chat(ask('What is a duck?'))).json();
        await idle();
        const after = await families(), [busy, other] = lanes(after);
        assert.ok(busy.backend > quiet.backend && busy.flock > quiet.flock);
        assert.ok(Math.abs(sum(busy) - sum(other)) < 0.05, 'every lane has been there as long');
        assert.ok(sum(busy) <= after.duckd_uptime_seconds.samples[0].value);
        const total = (f, name) => f[name].samples.reduce((a, s) => a + s.value, 0);
        const positions = total(after, 'duckd_lane_positions_total') - total(before, 'duckd_lane_positions_total');
        assert.ok(positions >= r.usage.total_tokens - 1 - r.usage.prompt_tokens_details.cached_tokens, `${positions} positions`);
        assert.equal(after.duckd_time_to_first_token_seconds.samples.at(-1).value, before.duckd_time_to_first_token_seconds.samples.at(-1).value + 1);
        const json = (await metrics()).lanes;
        assert.equal(json.length, 2);
        assert.ok(Math.abs(json[0].backend_s - busy.backend) < 1e-3 && json[0].jobs > 0 && json[0].positions >= json[0].jobs);
    },
    async 'tokenize'() {
        const plain = await (await post(server, '/v1/tokenize', { content: '<｜User｜>' })).json();
        const special = await (await post(server, '/v1/tokenize', { content: '<｜User｜>', allow_special: true })).json();
        assert.ok(plain.count > 1 && plain.tokens.length === plain.count && !plain.tokens.includes(6389));
        assert.deepEqual(special, { tokens: [6389], count: 1 });
        await refused({ text: 'x' }, 400, /content must be a string/, '/v1/tokenize');
    },
    async 'a whole answer'() {
        const r = await (await chat(ask('What is a duck?'))).json();
        assert.equal(r.object, 'chat.completion');
        assert.equal(r.choices[0].message.content, duck);
        assert.equal(r.choices[0].finish_reason, 'stop');
        assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
        assert.equal(typeof r.usage.prompt_tokens_details.cached_tokens, 'number');
    },
    async 'a stream is exactly what clients rely on'() {
        const r = await chat(ask('What is a duck?', { stream: true, stream_options: { include_usage: true } }));
        assert.equal(r.headers.get('content-type'), 'text/event-stream');
        assert.equal(r.headers.get('cache-control'), 'no-cache');
        const all = events(await r.text());
        assert.equal(all.pop(), '[DONE]');
        const chunks = all.map((e) => JSON.parse(e));
        const usage = chunks.pop();
        assert.deepEqual(usage.choices, []);
        assert.ok(usage.usage.completion_tokens > 5);
        assert.equal(chunks[0].choices[0].delta.role, 'assistant');
        const last = chunks.at(-1).choices[0];
        assert.deepEqual(last.delta, {});
        assert.equal(last.finish_reason, 'stop');
        for (const c of chunks) {
            assert.equal(c.object, 'chat.completion.chunk');
            for (const key of ['id', 'created', 'model', 'system_fingerprint']) assert.equal(c[key], usage[key]);
            if (c !== chunks.at(-1)) assert.equal(c.choices[0].finish_reason, null);
            assert.equal(c.usage, null);
        }
        assert.equal(chunks.map((c) => c.choices[0].delta.content ?? '').join(''), duck);
        assert.ok(chunks.length > 8, 'token by token');
        const without = events(await (await chat(ask('Hello', { stream: true }))).text()).slice(0, -1).map((e) => JSON.parse(e));
        assert.ok(without.every((c) => !('usage' in c) && c.choices.length === 1));
    },
    async 'requests are read leniently'() {
        const variants = [
            ask('What is a duck?', { tools: [{ type: 'function', function: { name: 'f' } }], tool_choice: 'none' }),
            { messages: [{ role: 'user', content: [{ type: 'text', text: 'What is ' }, { type: 'text', text: 'a duck?' }] }] },
            ask('What is a duck?', { stop: null, max_tokens: null, tools: null, functions: [], function_call: 'none', logit_bias: null, seed: null, stream: null, n: 1, user: 'x', nonsense: [{}] }),
            ask('What is a duck?', { max_completion_tokens: 500, max_tokens: 3, stop: [], model: 'whatever', store: false }),
            { temperature: 0, messages: [{ role: 'user', content: 'Hi' }, { role: 'assistant', content: null }, { role: 'user', content: 'What is a duck?' }] },
            { temperature: 0, messages: [{ role: 'user', content: 'Hi' }, { role: 'assistant', content: 'Hello!', reasoning_content: 'x' }, { role: 'user', content: 'What is a duck?' }] },
        ];
        for (const v of variants) assert.equal((await (await chat(v)).json()).choices?.[0].message.content, duck, JSON.stringify(v));
        const role = async (name) => (await (await chat({ temperature: 0, messages: [{ role: name, content: 'You are a helpful assistant.' }, { role: 'user', content: 'Who are you?' }] })).json());
        const [a, b] = [await role('system'), await role('developer')];
        assert.equal(a.choices[0].message.content, b.choices[0].message.content);
        assert.equal(a.usage.prompt_tokens, b.usage.prompt_tokens);
    },
    async 'what is wrong is refused by name'() {
        await refused('{"messages":[{"role":"user","content":"a', 400, /no JSON.*invalid_json/);
        await refused(`{"messages":${'['.repeat(1000)}${']'.repeat(1000)}}`, 400, /nested deeper than 1000 at byte 1011 \| .*invalid_json/);
        await refused(`{"messages":${'['.repeat(999)}${']'.repeat(999)}}`, 400, /messages/);
        await refused(`{"messages":[x${'['.repeat(1000)}`, 400, /no JSON: error at byte 13 /);
        await refused('', 400, /no body/);
        await refused('[]', 400, /one JSON object/);
        await refused('{} x', 400, /one JSON object/);
        await refused('{"messages":[{"role":"user","content":"a\\u0000b"}]}', 400, /NUL/);
        await refused({}, 400, /messages must be/);
        await refused({ messages: [] }, 400, /messages must be/);
        await refused({ messages: [{ role: 'user' }] }, 400, /messages\[0\] has no content/);
        await refused({ messages: [{ role: 'system', content: null }] }, 400, /messages\[0\] has no content/);
        await refused({ messages: [{ role: 'duck', content: 'x' }] }, 400, /needs a role/);
        await refused({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] }, 400, /text parts/);
        await refused(ask('x', { n: 2 }), 400, /n can only be 1 .*\| n \|/);
        await refused(ask('x', { temperature: 'warm' }), 400, /temperature must be a number from 0 to 100, not "warm"/);
        await refused(ask('x', { top_p: 1.5 }), 400, /top_p must be a number from 0 to 1, not 1\.5/);
        await refused(ask('x', { stream: 'yes' }), 400, /stream must be true or false, not "yes"/);
        await refused(ask('x', { stop: ['a', null] }), 400, /stop must be .* not null/);
        await refused(ask('x', { logit_bias: { 5: [] } }), 400, /token 5 must be a number from -100 to 100, not an array/);
        await refused(ask('x', { temperature: -1 }), 400, /temperature/);
        await refused(ask('x', { top_p: 2 }), 400, /top_p/);
        await refused(ask('x', { max_tokens: 0 }), 400, /max_tokens must be a whole number from 1/);
        await refused(ask('x', { stop: 7 }), 400, /stop must be/);
        await refused(ask('x', { stop: [''] }), 400, /empty/);
        await refused(ask('x', { logit_bias: { 6400: 1 } }), 400, /logit_bias names token '6400'; ids are 0 to 6399/);
        await refused(ask('x', { top_logprobs: 2 }), 400, /needs logprobs/);
        await refused(ask('x', { response_format: { type: 'json_object' } }), 400, /response_format/);
        const results = (...ids) => ({ messages: [{ role: 'user', content: 'x' },
            { role: 'assistant', content: null, tool_calls: ['a', 'b'].map((id) => ({ id, type: 'function', function: { name: 'f', arguments: '{}' } })) },
            ...ids.map((id) => ({ role: 'tool', tool_call_id: id, content: 'y' }))], max_tokens: 1 });
        await refused(results('b', 'c'), 400, /tool_call_id of messages\[3\] is "c": none of the calls before it has it/);
        await refused(results('b', 'b'), 400, /tool_call_id of messages\[3\] is "b": that call has a result/);
        for (const ids of [['b', 'a'], ['b', undefined], [undefined, undefined], ['a', '']]) assert.equal((await chat(results(...ids))).status, 200, `${ids}`);
        await refused(ask('x', { response_format: 'json_object' }), 400, /response_format can only be of type text/);
        await refused(ask('x', { thinking: true }), 400, /thinking must be an object with a type, not true .*\| thinking \|/);
        await refused(ask('x', { tools: [{ type: 'function', function: {} }] }), 400, /tools\[0\] needs function.name/);
        await refused(ask('duck '.repeat(5000)), 400, /maximum context length is 4096 tokens; the messages have \d{4,} tokens.*invalid_request_error.*context_length_exceeded/);
        await refused(ask('duck '.repeat(5000), { stream: true }), 400, /context_length_exceeded/);
        await refused({ prompt: ['a', 'b'] }, 400, /only one prompt/, '/v1/completions');
        await refused({ prompt: [6400] }, 400, /token id is a whole number below 6400, not 6400/, '/v1/completions');
        await refused({}, 400, /prompt is missing: a string or an array of token ids/, '/v1/completions');
        await refused('x', 404, /nothing at \/v1\/nowhere \|/, '/v1/nowhere/');
        const wrong = await fetch(`${server.url}/v1/chat/completions`);
        assert.equal(wrong.status, 405);
        assert.match(wrong.headers.get('allow'), /POST/);
    },
    async 'every parameter is applied'() {
        const text = async (more) => (await (await chat(ask('Tell me a short story about a cat.', { max_tokens: 24, ...more }))).json()).choices[0];
        const plain = await text({});
        assert.equal(plain.finish_reason, 'length');
        const hot = [await text({ temperature: 3, seed: 1 }), await text({ temperature: 3, seed: 1 }), await text({ temperature: 3, seed: 2 })];
        assert.equal(hot[0].message.content, hot[1].message.content, 'a seed repeats');
        assert.notEqual(hot[0].message.content, hot[2].message.content, 'another seed does not');
        assert.notEqual(hot[0].message.content, plain.message.content, 'temperature');
        assert.notEqual((await text({ temperature: 3 })).message.content, (await text({ temperature: 3 })).message.content, 'no seed: a new one');
        for (const off of [{ top_k: 1 }, { top_p: 0.0001 }, { min_p: 1 }])
            assert.equal((await text({ temperature: 3, seed: 1, ...off })).message.content, plain.message.content, JSON.stringify(off));
        assert.notEqual((await text({ temperature: 3, seed: 1, frequency_penalty: 2 })).message.content, hot[0].message.content, 'frequency_penalty');
        assert.notEqual((await text({ temperature: 3, seed: 1, presence_penalty: -2 })).message.content, hot[0].message.content, 'presence_penalty');
        const { tokens } = await (await post(server, '/tokenize', { content: plain.message.content })).json();
        const biased = await text({ logit_bias: { [tokens[0]]: -100 } });
        assert.ok(!biased.message.content.startsWith(plain.message.content.slice(0, 5)), 'logit_bias');
        assert.equal((await (await chat(ask('What is a duck?', { max_completion_tokens: 5 }))).json()).usage.completion_tokens, 5);
        const { timings } = await (await chat(ask('What is a duck?', { max_tokens: 1 }))).json();
        assert.ok(timings.prefill_tok_s > 0 && timings.decode_tok_s === null, 'one token has no rate of decoding');
    },
    async 'stop strings end the answer and are never sent'() {
        const whole = await (await chat(ask('What is a duck?', { stop: 'footed broad' }))).json();
        assert.equal(whole.choices[0].message.content, 'A duck is a small wild or domesticated web-');
        assert.equal(whole.choices[0].finish_reason, 'stop');
        const r = await chat(ask('What is a duck?', { stop: ['zzz', 'swimming bird'], stream: true }));
        const parts = events(await r.text()).slice(0, -1).map((e) => JSON.parse(e).choices[0].delta.content ?? '');
        assert.equal(parts.join(''), 'A duck is a small wild or domesticated web-footed broad-billed ');
    },
    async 'log-probabilities'() {
        const r = await (await chat(ask('What is a duck?', { logprobs: true, top_logprobs: 3 }))).json();
        const list = r.choices[0].logprobs.content;
        assert.equal(Buffer.concat(list.map((t) => Buffer.from(t.bytes))).toString(), duck);
        for (const t of list) {
            assert.equal(t.top_logprobs.length, 3);
            assert.ok(t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob && t.logprob <= 0);
            assert.equal(t.top_logprobs[0].token, t.token, 'greedy takes the best');
        }
        const s = events(await (await chat(ask('What is a duck?', { logprobs: true, stream: true }))).text()).slice(0, -1);
        const streamed = s.flatMap((e) => JSON.parse(e).choices[0].logprobs?.content ?? []);
        assert.deepEqual(streamed.map((t) => t.token), list.map((t) => t.token));
        assert.ok(streamed.every((t, i) => Math.abs(t.logprob - list[i].logprob) < 1e-6));
        const c = await (await post(server, '/v1/completions', { prompt: 'A duck', logprobs: 2, max_tokens: 4, temperature: 0 })).json();
        assert.equal(c.choices[0].logprobs.tokens.join(''), c.choices[0].text);
        assert.equal(Object.keys(c.choices[0].logprobs.top_logprobs[0]).length, 2);
    },
    async 'completions'() {
        const ids = (await (await post(server, '/tokenize', { content: 'A duck is' })).json()).tokens;
        const texts = [];
        for (const prompt of ['A duck is', ['A duck is'], [0, ...ids], [[0, ...ids]]]) {
            const r = await (await post(server, '/completions', { prompt, max_tokens: 8, temperature: 0 })).json();
            assert.equal(r.object, 'text_completion');
            texts.push(r.choices[0].text);
        }
        assert.equal(new Set(texts).size, 1);
        const s = events(await (await post(server, '/completions', { prompt: 'A duck is', max_tokens: 8, temperature: 0, stream: true })).text());
        assert.equal(s.pop(), '[DONE]');
        assert.equal(s.map((e) => JSON.parse(e).choices[0].text).join(''), texts[0]);
    },
    async 'thoughts are split from the answer'() {
        const r = (await (await chat(ask('Is 91 prime?', { chat_template_kwargs: { thinking: true } }))).json());
        assert.match(r.choices[0].message.reasoning_content, /91 is divisible by 7/);
        assert.match(r.choices[0].message.content, /^No, 91 is not prime/);
        assert.ok(r.usage.completion_tokens_details.reasoning_tokens > 5);
        for (const on of [{ reasoning_effort: 'high' }, { thinking: { type: 'enabled' } }])
            assert.ok((await (await chat(ask('Is 91 prime?', on))).json()).choices[0].message.reasoning_content);
        assert.ok(!('reasoning_content' in (await (await chat(ask('Is 91 prime?', { reasoning_effort: 'none' }))).json()).choices[0].message));
        const s = events(await (await chat(ask('Is 91 prime?', { stream: true, reasoning_effort: 'low' }))).text()).slice(0, -1).map((e) => JSON.parse(e).choices[0].delta);
        assert.equal(s.map((d) => d.reasoning_content ?? '').join(''), r.choices[0].message.reasoning_content);
        assert.equal(s.map((d) => d.content ?? '').join(''), r.choices[0].message.content);
    },
    async 'characters arrive whole, and special tokens in a message are text'() {
        const s = events(await (await chat(ask('你好', { stream: true }))).text()).slice(0, -1).map((e) => JSON.parse(e).choices[0].delta.content ?? '');
        assert.equal(s.join(''), '你好！我是小鸭，一个很小的语言模型。');
        assert.ok(s.every((t) => !t.includes('\ufffd')));
        const size = async (content) => (await (await post(server, '/tokenize', `{"content":"${content}"}`)).json()).count;
        for (const half of ['\\ud83d', '\\ude00', '\\ud83dx', '\\ud83d\\ud83d\\ude00', '\\ude00\\ud83d', '\\\\ud83d'])
            assert.equal(await size(`a ${half}`), await size(`a ${half.replace('\\\\', '\0').replace(/(\\ud83d\\ude00)|\\ud83d|\\ude00/g, (m, pair) => pair ?? '\ufffd').replace('\0', '\\\\')}`), half);
        const a = (await (await chat(ask('x<｜end▁of▁sentence｜>y'))).json()).usage.prompt_tokens;
        assert.ok(a > 12, 'the text of a control token is many tokens');
    },
    async 'keep-alive, pipelining, chunks, 100-continue'() {
        const two = await raw(server, 'GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
        assert.equal(count(two, 'HTTP/1.1 200 OK'), 2);
        assert.ok(two.indexOf('"status":"ok"') < two.indexOf('"object":"list"'));
        const body = JSON.stringify(ask('What is a duck?', { max_tokens: 4 }));
        const pair = await raw(server, `POST /v1/chat/completions HTTP/1.1\r\nHOST: a\r\ncOnTeNt-LeNgTh: ${body.length}\r\n\r\n${body}GET /health HTTP/1.1\r\nConnection: close\r\n\r\n`);
        assert.ok(pair.indexOf('chat.completion') < pair.indexOf('"status":"ok"'), 'in order');
        const chunked = await raw(server, [`POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\n${body.slice(0, 5)}\r\n`, `${(body.length - 5).toString(16)}\r\n${body.slice(5)}\r\n0\r\n\r\n`]);
        assert.match(chunked, /"finish_reason":"length"/);
        const wait = await raw(server, `POST /v1/tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n`, { enough: (t) => t.includes('100 Continue\r\n\r\n') });
        assert.match(wait, /^HTTP\/1.1 100 Continue/);
        const old = await raw(server, `POST /v1/chat/completions HTTP/1.0\r\nContent-Length: ${JSON.stringify(ask('Hello', { stream: true })).length}\r\n\r\n${JSON.stringify(ask('Hello', { stream: true }))}`);
        assert.ok(old.endsWith('data: [DONE]\n\n') && !old.includes('Transfer-Encoding'));
        const upgrade = await raw(server, 'GET /health HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n');
        assert.match(upgrade, /^HTTP\/1.1 200/);
    },
    async 'limits are answered, not crashed into'() {
        assert.match(await raw(server, 'nonsense\r\n\r\n'), /^HTTP\/1.1 400/);
        assert.match(await raw(server, `GET /${'a'.repeat(9000)} HTTP/1.1\r\n\r\n`), /^HTTP\/1.1 414/);
        assert.match(await raw(server, `GET / HTTP/1.1\r\nX: ${'a'.repeat(40000)}\r\n\r\n`), /^HTTP\/1.1 431/);
        assert.match(await raw(server, 'POST /v1/tokenize HTTP/1.1\r\nContent-Length: 104857600\r\n\r\n'), /^HTTP\/1.1 413/);
        const big = Buffer.alloc(1 << 20, 'x');
        assert.match(await raw(server, ['POST /v1/tokenize HTTP/1.1\r\nContent-Length: 104857600\r\n\r\n', ...Array(100).fill(big)]), /^HTTP\/1.1 413/);
        assert.match(await raw(server, ['POST /v1/tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n', ...Array(3).fill(Buffer.concat([Buffer.from('100000\r\n'), big, Buffer.from('\r\n')]))]), /^HTTP\/1.1 413/);
        assert.match(await raw(server, 'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n'), /^HTTP\/1.1 405/);
        assert.match(await raw(server, 'GET / HTTP/1.1\r\nExpect: quack\r\n\r\n'), /^HTTP\/1.1 417/);
    },
    async 'a slow client is ended, others do not notice'() {
        const slow = net.connect(server.port, '127.0.0.1');
        let got = '';
        slow.on('error', () => {});
        slow.on('data', (d) => { got += d; });
        slow.write('GET /health HTTP/1.1\r\n');
        const drip = setInterval(() => slow.write('X: y\r\n'), 200);
        const half = raw(server, 'POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{"mess', { end: true });
        const now = ownClock(server), start = now();
        assert.equal((await chat(ask('Hello'))).status, 200);
        assert.ok(now() - start < 2000);
        assert.equal(await half, '', 'half a request has no answer');
        await until('the slow one is told', () => got.includes('408'));
        clearInterval(drip);
        slow.destroy();
    },
    'who leaves frees the lane, running or waiting': () => onEndless(async (other, endless) => {
        const leave = [];
        const start = () => {
            const a = new AbortController();
            leave.push(a);
            return chat(endless({ stream: true }), { signal: a.signal }, other).catch(() => {});
        };
        const streams = [start(), start()];
        await until('two run', async () => (await metrics(other)).running === 2);
        const waiting = [start(), start()];
        await until('two wait', async () => (await metrics(other)).waiting === 2);
        const full = await chat(ask('Hello'), {}, other);
        assert.equal(full.status, 429);
        assert.ok(Number(full.headers.get('retry-after')) > 0);
        assert.equal((await full.json()).error.type, 'rate_limit_error');
        leave[2].abort();
        await until('one waits', async () => (await metrics(other)).waiting === 1);
        assert.equal((await metrics(other)).running, 2, 'those who run go on');
        leave[0].abort();
        await until('who waited runs', async () => { const m = await metrics(other); return m.running === 2 && m.waiting === 0; });
        leave.forEach((a) => a.abort());
        await Promise.all([...streams, ...waiting]);
        await idle(other);
        assert.equal((await (await chat(ask('What is a duck?'), {}, other)).json()).choices[0].message.content, duck);
        // A client that does not stream and hangs up.
        const body = JSON.stringify(endless());
        const socket = net.connect(other.port, '127.0.0.1');
        socket.write(`POST /v1/chat/completions HTTP/1.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
        await until('it runs', async () => (await metrics(other)).running === 1);
        socket.destroy();
        await idle(other);
    }),
    'a stream that waits says that it is alive': () => onEndless(async (other, endless) => {
        const leave = new AbortController();
        const streams = [];
        // one after the other: over connections of their own they would come in any order
        for (let i = 0; i < 3; i++) streams.push(await chat(endless({ stream: true }), { signal: leave.signal }, other));
        const reader = streams[2].body.getReader();
        let text = '';
        const late = setTimeout(() => leave.abort(), 60000); // then reading fails
        while (!text.includes('\n: waiting\n\n')) text += Buffer.from((await reader.read()).value).toString();
        assert.match(text, /^data: \{[^\n]*"role":"assistant"[^\n]*\n\n: waiting\n\n/);
        clearTimeout(late);
        leave.abort();
        await idle(other);
    }),
    async 'an answer that halts is waited for, its prompt no longer'() {
        const other = await launch(`${build}/tests/scripted-server`, 'models/duckling', 'halting');
        try {
            const reader = (await chat(ask('[[A duck]]', { stream: true }), { signal: AbortSignal.timeout(60000) }, other)).body.getReader();
            let text = '', behind = '';
            while (!/^: .*\n\n/m.test(behind)) { // what is said after its first token
                text += Buffer.from((await reader.read()).value).toString();
                behind = text.split('"content":"A"')[1] ?? '';
            }
            assert.match(behind, /^: waiting$/m);
            assert.doesNotMatch(behind, /prompt tokens/);
        } finally {
            await other.stop('SIGKILL');
        }
    },
    async 'while the model loads: how far it is, and no other answer'() {
        const other = await launch(`${build}/tests/scripted-server`, 'models/duckling', 'slow');
        try {
            const seen = [];
            const look = async () => {
                const r = await fetch(`${other.url}/health`), health = await r.json();
                assert.equal(r.status, 503);
                assert.ok(Number(r.headers.get('retry-after')) > 0);
                assert.deepEqual([health.status, health.error.code], ['loading', 'loading']);
                seen.push(health);
                return health;
            };
            // It stops twice until it is told to go on.
            await until('some is loaded', async () => (await look()).eta_s !== null);
            other.child.kill('SIGUSR1');
            await until('most is loaded', async () => (await look()).percent > 90);
            const early = await post(other, '/v1/chat/completions', ask('Hello'));
            assert.equal(early.status, 503);
            assert.equal((await early.json()).error.code, 'loading');
            assert.equal((await fetch(`${other.url}/v1/models`)).status, 200);
            assert.match(await (await fetch(`${other.url}/metrics`)).text(), /\nduckd_ready 0\n/);
            other.child.kill('SIGUSR1');
            await until('it is loaded', async () => (await fetch(`${other.url}/health`)).status === 200);
            const percents = seen.map((h) => h.percent), etas = seen.map((h) => h.eta_s).filter((eta) => eta !== null);
            assert.deepEqual(percents, [...percents].sort((a, b) => a - b));
            assert.ok(percents.at(-1) <= 100, `${percents}`);
            assert.ok(etas.length > 1 && etas.at(-1) < etas[0] && etas[0] < 20, `${etas}`);
            const slowest = seen.map((h) => h.slowest);
            assert.ok(slowest.some((s) => s) && slowest.at(-1) === null, JSON.stringify(slowest));
            for (const s of slowest) if (s) assert.deepEqual(s, { duck: 'duck "3"', bytes: s.bytes, bytes_total: 10, bytes_per_second: 5, eta_s: (10 - s.bytes) / 5 });
            assert.match(await (await fetch(`${other.url}/metrics`)).text(), /\nduckd_ready 1\n/);
        } finally {
            await other.stop('SIGKILL');
        }
    },
    async 'connect and close, a thousand times'() {
        for (let i = 0; i < 50; i++) {
            await Promise.all(Array.from({ length: 20 }, () => new Promise((resolve) => {
                const s = net.connect(server.port, '127.0.0.1', () => { s.destroy(); resolve(); });
                s.on('error', resolve);
            })));
        }
        const gone = () => until('they are gone', async () => { try { return (await metrics()).connections <= 8; } catch { return false; } }); // there may be no room to ask yet
        await gone();
        const held = await Promise.all(Array.from({ length: 60 }, () => new Promise((resolve) => {
            const s = net.connect(server.port, '127.0.0.1', () => resolve(s));
            s.on('error', () => {});
        })));
        held.forEach((s) => s.destroy());
        await gone();
    },
    async 'pages of other hosts may not call'() {
        const from = (origin, method = 'POST') => fetch(`${server.url}/v1/tokenize`, { method, headers: { origin }, ...(method === 'POST' && { body: '{"content":"x"}' }) });
        assert.equal((await from('https://evil.example')).status, 403);
        assert.equal((await from('https://evil.example', 'OPTIONS')).status, 403);
        assert.equal((await from(`http://evil.example:${server.port}`)).status, 403);
        const good = await from('https://chat.example', 'OPTIONS');
        assert.equal(good.status, 204);
        assert.equal(good.headers.get('access-control-allow-origin'), 'https://chat.example');
        assert.match(good.headers.get('access-control-allow-headers'), /Authorization/);
        assert.equal((await from('https://chat.example')).status, 200);
        assert.equal((await from(server.url)).status, 200);
        for (const local of ['http://localhost:3000', 'http://[::1]:80', 'https://127.0.0.1']) assert.equal((await from(local, 'OPTIONS')).status, 204);
        for (const bad of ['null', 'http://localhost.evil.example', 'http://127.0.0.1.evil.example', 'file://', 'http://']) assert.equal((await from(bad, 'OPTIONS')).status, 403, bad);
    },
    async 'memory stays where it is over thousands of requests'() {
        const burst = async (n) => {
            const one = 'GET /health HTTP/1.1\r\nHost: a\r\n\r\n';
            for (let i = 0; i < n; i += 500)
                await raw(server, one.repeat(499) + 'GET /health HTTP/1.1\r\nConnection: close\r\n\r\n');
        };
        await burst(2000);
        for (let i = 0; i < 20; i++) await (await chat(ask('Hello'))).json();
        const before = server.rss();
        await burst(10000);
        for (let i = 0; i < 40; i++) await (await chat(ask('Hello', { max_tokens: 2 }))).json();
        const grown = server.rss() - before;
        assert.ok(grown < 6 << 20, `grew by ${grown} bytes`);
    },
    async 'SIGTERM lets requests finish; keys are asked for'() {
        const { writeFileSync, mkdtempSync } = await import('node:fs');
        const dir = mkdtempSync('/tmp/duckd-web-');
        writeFileSync(`${dir}/keys`, '# one\nsecret-1\n\n  secret-2 \r\n');
        const other = await serve('--api-keys', `${dir}/keys`, '--drain-timeout', '5', '--model-name', 'pond/duck');
        try {
            assert.equal((await post(other, '/v1/tokenize', { content: 'x' })).status, 401);
            assert.equal((await post(other, '/v1/tokenize', { content: 'x' }, { headers: { authorization: 'Bearer secret-' } })).status, 401);
            const key = { headers: { authorization: 'Bearer secret-2' } };
            assert.equal((await post(other, '/v1/tokenize', { content: 'x' }, key)).status, 200);
            assert.equal((await fetch(`${other.url}/v1/models/pond/duck`, key)).status, 200);
            let answered = false;
            const last = post(other, '/v1/chat/completions', ask('What is a duck?'), key).finally(() => { answered = true; });
            await until('it runs', async () => answered || (await (await fetch(`${other.url}/metrics.json`, key)).json()).running === 1);
            const end = other.stop();
            assert.equal((await (await last).json()).choices[0].message.content, duck);
            assert.deepEqual(await end, { code: 0, signal: null });
        } finally {
            await other.stop('SIGKILL');
        }
    },
    async 'the end: a stream that does not finish is told, the process ends'() {
        const end = await new Promise((resolve) => {
            chat(endless({ stream: true })).then(async (r) => {
                setTimeout(() => server.child.kill('SIGTERM'), 200);
                setTimeout(() => server.child.kill('SIGTERM'), 500);
                resolve({ text: await r.text(), exit: await server.ended });
            });
        });
        assert.match(end.text, /data: \{"error":\{"message":"the server is shutting down"/);
        assert.ok(!end.text.includes('[DONE]'));
        assert.deepEqual(end.exit, { code: 0, signal: null });
        assert.ok(server.log.includes('"path":"/v1/chat/completions","status":200'), 'access log');
    },
};

const failed = await run(cases);
if (!server.exited) await server.stop('SIGKILL');
process.exit(failed ? 1 : 0);
