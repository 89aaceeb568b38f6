// aisdk_test.mjs: the server as the Vercel AI SDK sees it. usage: node aisdk_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { build, run, serve, until } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { generateText, streamText, APICallError } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const server = await serve();
const provider = createOpenAICompatible({ name: 'duckd', baseURL: `${server.url}/v1`, includeUsage: true });
const model = provider('duckling');
const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const base = { model, temperature: 0, maxRetries: 0 };

const failed = await run({
    async 'generateText'() {
        const r = await generateText({ ...base, prompt: 'What is a duck?' });
        assert.equal(r.text, duck);
        assert.equal(r.finishReason, 'stop');
        assert.ok(r.usage.outputTokens > 10 && r.usage.inputTokens > 3);
    },
    async 'streamText'() {
        const r = streamText({ ...base, prompt: 'What is a duck?' });
        let text = '', parts = 0;
        for await (const part of r.textStream) { text += part; parts++; }
        assert.equal(text, duck);
        assert.ok(parts > 5);
        assert.equal(await r.finishReason, 'stop');
        assert.ok((await r.usage).outputTokens > 10);
    },
    async 'system, several turns, stop, length, seed'() {
        const r = await generateText({ ...base, system: 'You are a helpful assistant.', messages: [
            { role: 'user', content: 'My name is Anna. What is 7 times 8?' }, { role: 'assistant', content: '7 * 8 = 56.' },
            { role: 'user', content: [{ type: 'text', text: 'What is my name?' }] }] });
        assert.match(r.text, /Anna/);
        assert.equal((await generateText({ ...base, prompt: 'What is a duck?', stopSequences: ['wild'] })).text, 'A duck is a small ');
        assert.equal((await generateText({ ...base, prompt: 'What is a duck?', maxOutputTokens: 4 })).finishReason, 'length');
        const seeded = async () => (await generateText({ ...base, temperature: 2, seed: 3, maxOutputTokens: 16, prompt: 'Tell me a short story about a cat.' })).text;
        assert.equal(await seeded(), await seeded());
    },
    async 'reasoning'() {
        const r = await generateText({ ...base, prompt: 'Is 91 prime?', providerOptions: { duckd: { reasoningEffort: 'low' } } });
        assert.match(r.reasoningText, /divisible by 7/);
        assert.match(r.text, /not prime/);
    },
    async 'errors'() {
        await assert.rejects(generateText({ ...base, prompt: 'duck '.repeat(6000) }), (e) => APICallError.isInstance(e) && e.statusCode === 400 && /context length/.test(e.message));
    },
    async 'abort in the middle'() {
        const abort = new AbortController();
        const r = streamText({ ...base, prompt: 'Tell me a short story about a cat.', abortSignal: abort.signal, onError() {},
            providerOptions: { duckd: { logit_bias: { 1: -100 } } } });
        let n = 0;
        try { for await (const part of r.textStream) { if (++n === 4) abort.abort(); void part; } } catch { /* how it ends is the SDK's choice */ }
        assert.ok(n >= 4);
        await until('the lane is free', async () => { const m = await (await fetch(`${server.url}/metrics.json`)).json(); return m.running + m.waiting === 0; });
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
