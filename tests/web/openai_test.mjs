// openai_test.mjs: the server as the `openai` package sees it. usage: node openai_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { build, run, serve, until } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { OpenAI } = require('openai');
const server = await serve('--lanes', '4', '--queue', '8');
const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const ask = (content, more = {}) => ({ model: 'duckling', temperature: 0, messages: [{ role: 'user', content }], ...more });
const idle = () => until('all lanes are free', async () => { const m = await (await fetch(`${server.url}/metrics.json`)).json(); return m.running + m.waiting === 0; });

const failed = await run({
    async 'models'() {
        const list = [];
        for await (const m of client.models.list()) list.push(m.id);
        assert.deepEqual(list, ['duckling']);
        assert.equal((await client.models.retrieve('duckling')).owned_by, 'duckd');
        await assert.rejects(client.models.retrieve('gpt'), OpenAI.NotFoundError);
    },
    async 'plain'() {
        const r = await client.chat.completions.create(ask('What is a duck?'));
        assert.equal(r.choices[0].message.content, duck);
        assert.equal(r.choices[0].finish_reason, 'stop');
        assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    },
    async 'stream with usage'() {
        const stream = await client.chat.completions.create(ask('What is a duck?', { stream: true, stream_options: { include_usage: true } }));
        let text = '', usage, reasons = [], ids = new Set();
        for await (const chunk of stream) {
            ids.add(chunk.id);
            usage = chunk.usage ?? usage;
            for (const c of chunk.choices) { text += c.delta.content ?? ''; if (c.finish_reason !== null) reasons.push(c.finish_reason); }
        }
        assert.equal(text, duck);
        assert.deepEqual(reasons, ['stop']);
        assert.equal(ids.size, 1);
        assert.ok(usage.completion_tokens > 10);
    },
    async 'the helper that collects a stream'() {
        const runner = client.chat.completions.stream(ask('What is a duck?'));
        assert.equal((await runner.finalChatCompletion()).choices[0].message.content, duck);
    },
    async 'stop, length, seed, logprobs, thoughts'() {
        const stop = await client.chat.completions.create(ask('What is a duck?', { stop: ['wild'] }));
        assert.equal(stop.choices[0].message.content, 'A duck is a small ');
        const short = await client.chat.completions.create(ask('What is a duck?', { max_completion_tokens: 3 }));
        assert.equal(short.choices[0].finish_reason, 'length');
        const seeded = () => client.chat.completions.create(ask('Tell me a short story about a cat.', { temperature: 2, seed: 7, max_tokens: 20 }));
        assert.equal((await seeded()).choices[0].message.content, (await seeded()).choices[0].message.content);
        const probs = await client.chat.completions.create(ask('Hello', { logprobs: true, top_logprobs: 2, max_tokens: 4 }));
        assert.equal(probs.choices[0].logprobs.content.length, 4);
        const thought = await client.chat.completions.create(ask('Is 91 prime?', { reasoning_effort: 'medium' }));
        assert.match(thought.choices[0].message.reasoning_content, /divisible/);
        assert.match(thought.choices[0].message.content, /not prime/);
        const text = await client.completions.create({ model: 'duckling', prompt: 'A duck is', max_tokens: 5, temperature: 0 });
        assert.ok(text.choices[0].text.length > 0);
    },
    async 'a second turn reuses the first'() {
        const messages = [{ role: 'user', content: 'My name is Anna. What is 7 times 8?' }];
        const first = await client.chat.completions.create({ model: 'd', temperature: 0, messages });
        messages.push(first.choices[0].message, { role: 'user', content: 'What is my name?' });
        const second = await client.chat.completions.create({ model: 'd', temperature: 0, messages });
        assert.match(second.choices[0].message.content, /Anna/);
        const cached = second.usage.prompt_tokens_details.cached_tokens;
        assert.ok(cached >= first.usage.prompt_tokens - 1, `${cached} cached, the first prompt had ${first.usage.prompt_tokens}`);
        assert.ok(cached < second.usage.prompt_tokens);
        const again = await client.chat.completions.create({ model: 'd', temperature: 0, messages });
        assert.equal(again.choices[0].message.content, second.choices[0].message.content);
    },
    async 'errors are the classes of the client'() {
        await assert.rejects(client.chat.completions.create(ask('x', { temperature: 'hot' })), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature' && e.type === 'invalid_request_error');
        await assert.rejects(client.chat.completions.create(ask('duck '.repeat(6000))), (e) => e.status === 400 && e.code === 'context_length_exceeded');
        await assert.rejects(client.chat.completions.create(ask('x', { n: 3 })), OpenAI.BadRequestError);
    },
    async 'abort in the middle'() {
        const stream = await client.chat.completions.create(ask('Tell me a short story about a cat.', { stream: true, logit_bias: { 1: -100 } }));
        let chunks = 0;
        for await (const chunk of stream) { if (++chunks === 5) break; void chunk; }
        assert.equal(chunks, 5);
        await idle();
    },
    async 'one hundred chats, one after the other'() {
        for (let i = 0; i < 100; i++) {
            const r = await client.chat.completions.create(ask('Hello', { max_tokens: 3 }));
            assert.equal(r.usage.completion_tokens, 3);
        }
    },
    async 'twelve at once are all answered'() {
        const all = await Promise.all(Array.from({ length: 12 }, () => client.chat.completions.create(ask('What is a duck?'))));
        for (const r of all) assert.equal(r.choices[0].message.content, duck);
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
