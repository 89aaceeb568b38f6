// clients_test.mjs: LangChain as it is, and Open WebUI's requests as its backend sends them (the program itself is not in
// a registry that the tests use). usage: node clients_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { build, events, post, run, serve, serveScript, until } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { ChatOpenAI, OpenAI } = require('@langchain/openai');
const { AIMessage, HumanMessage, SystemMessage, ToolMessage } = require('@langchain/core/messages');
const server = await serve();
const script = await serveScript();
const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const at = (s, more = {}) => ({ model: 'duckling', temperature: 0, maxRetries: 0, apiKey: 'none', configuration: { baseURL: `${s.url}/v1` }, ...more });
const idle = async (s) => { const m = await (await fetch(`${s.url}/metrics.json`)).json(); return m.running + m.waiting === 0; };

// The names that its signed-in user is forwarded by, and what it adds to every request.
const webui = { authorization: 'Bearer sk-none', 'x-openwebui-user-name': 'Anna%20%E9%B8%AD', 'x-openwebui-user-id': '1f0c', 'x-openwebui-user-email': 'a@example.org',
    'x-openwebui-user-role': 'user', 'x-openwebui-chat-id': 'c-1', accept: '*/*', 'accept-encoding': 'gzip, deflate, br', 'user-agent': 'Python/3.11 aiohttp/3.12.15' };

const failed = await run({
    async 'langchain: invoke, usage, stop, length'() {
        const r = await new ChatOpenAI(at(server)).invoke('What is a duck?');
        assert.equal(r.content, duck);
        assert.equal(r.response_metadata.finish_reason, 'stop');
        assert.ok(r.usage_metadata.input_tokens > 3 && r.usage_metadata.output_tokens > 10);
        assert.equal((await new ChatOpenAI(at(server, { stop: ['wild'] })).invoke('What is a duck?')).content, 'A duck is a small ');
        const short = await new ChatOpenAI(at(server, { maxTokens: 4 })).invoke('What is a duck?');
        assert.equal(short.response_metadata.finish_reason, 'length');
    },
    async 'langchain: stream with usage, several turns, batch'() {
        let text = '', parts = 0, usage;
        for await (const part of await new ChatOpenAI(at(server, { streamUsage: true })).stream([new SystemMessage('You are a helpful assistant.'), new HumanMessage('What is a duck?')])) {
            text += part.content;
            parts++;
            usage = part.usage_metadata ?? usage;
        }
        assert.equal(text, duck);
        assert.ok(parts > 5 && usage.output_tokens > 10);
        const turns = await new ChatOpenAI(at(server)).invoke([new HumanMessage('My name is Anna. What is 7 times 8?'), new AIMessage('7 * 8 = 56.'), new HumanMessage('What is my name?')]);
        assert.match(turns.content, /Anna/);
        const both = await new ChatOpenAI(at(server)).batch(['What is a duck?', 'What is a duck?']);
        assert.deepEqual(both.map((r) => r.content), [duck, duck]);
    },
    async 'langchain: tools, and their results'() {
        const tool = { type: 'function', function: { name: 'weather', description: 'Says the weather.', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } };
        const call = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>';
        const model = new ChatOpenAI(at(script)).bindTools([tool]);
        const question = new HumanMessage(`Say [[${call}]]`);
        const r = await model.invoke([question]);
        assert.deepEqual(r.tool_calls.map(({ name, args }) => ({ name, args })), [{ name: 'weather', args: { city: 'Bern' } }]);
        assert.equal(r.response_metadata.finish_reason, 'tool_calls');
        let joined;
        for await (const part of await model.stream([question])) joined = joined ? joined.concat(part) : part;
        assert.deepEqual(joined.tool_calls.map(({ name, args }) => ({ name, args })), [{ name: 'weather', args: { city: 'Bern' } }]);
        const answer = await model.invoke([question, r, new ToolMessage({ tool_call_id: r.tool_calls[0].id, content: 'Sun. [[It is sunny.]]' })]);
        assert.equal(answer.content, 'It is sunny.');
    },
    async 'langchain: plain completions, errors, abort'() {
        assert.ok((await new OpenAI(at(server, { maxTokens: 8 })).invoke('hello there')).length > 3);
        await assert.rejects(new ChatOpenAI(at(server)).invoke('duck '.repeat(6000)), (e) => e.name === 'ContextOverflowError' && /context length/.test(e.message)); // told by the error's code
        await assert.rejects(new ChatOpenAI(at(server, { model: 'duckling', n: 2 })).invoke('x'), (e) => e.status === 400 && /\bn\b/.test(e.message));
        const abort = new AbortController();
        let n = 0;
        try {
            const stream = await new ChatOpenAI(at(server, { modelKwargs: { logit_bias: { 1: -100 } } })).stream('Tell me a short story about a cat.', { signal: abort.signal });
            for await (const part of stream) { if (++n === 4) abort.abort(); void part; }
        } catch { /* how it ends is the library's choice */ }
        assert.ok(n >= 4);
        await until('the lane is free', () => idle(server), 60000);
    },
    async 'open webui: models, a streamed turn, title and tags on the side, the next turn'() {
        for (const base of ['/v1', '']) { // whichever address its admin gave
            const models = await (await fetch(`${server.url}${base}/models`, { headers: webui })).json();
            assert.deepEqual(models.data.map((m) => [m.id, m.object]), [['duckling', 'model']]);
        }
        const messages = [{ role: 'system', content: 'You are a helpful assistant.' }, { role: 'user', content: [{ type: 'text', text: 'What is a duck?' }] }];
        const turn = (stream) => ({ stream, model: 'duckling', messages, temperature: 0, top_p: 1, seed: 1, stop: [], max_tokens: 64, frequency_penalty: 0, presence_penalty: 0,
            logit_bias: {}, reasoning_effort: 'none', response_format: { type: 'text' }, stream_options: stream ? { include_usage: true } : undefined,
            user: { name: 'Anna', id: '1f0c', email: 'a@example.org', role: 'user' }, features: { web_search: false }, params: {}, variables: { '{{USER_NAME}}': 'Anna' },
            tool_servers: [], background_tasks: { title_generation: true, tags_generation: true }, session_id: 's-1', chat_id: 'c-1', id: 'm-1' });
        const say = async (body) => {
            const r = await post(server, '/v1/chat/completions', body, { headers: webui });
            assert.equal(r.status, 200);
            return r;
        };
        const read = async (r) => {
            assert.match(r.headers.get('content-type'), /^text\/event-stream/);
            const all = events(await r.text());
            assert.equal(all.pop(), '[DONE]');
            const chunks = all.map((e) => JSON.parse(e));
            return { text: chunks.map((c) => c.choices[0]?.delta.content ?? '').join(''), usage: chunks.at(-1).usage };
        };
        const first = await read(await say(turn(true)));
        assert.equal(first.text, duck);
        assert.ok(first.usage.completion_tokens > 10);
        const side = ['title', 'tags', 'follow-up questions'].map((what) => say({ model: 'duckling', stream: false, max_completion_tokens: 12,
            messages: [{ role: 'user', content: `### Task:\nGenerate ${what} for this chat.\n<chat_history>\nUSER: What is a duck?\nASSISTANT: ${duck}\n</chat_history>` }] }));
        for (const r of await Promise.all(side)) assert.equal((await r.json()).choices[0].message.role, 'assistant');
        messages.push({ role: 'assistant', content: first.text }, { role: 'user', content: 'What is my name?' });
        const second = await read(await say(turn(true)));
        const fresh = second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens;
        assert.ok(fresh < 20, `${fresh} of ${second.usage.prompt_tokens} tokens computed anew`); // what is new in the second turn
        assert.equal(second.text, (await (await say(turn(false))).json()).choices[0].message.content);
    },
});
for (const s of [server, script]) await s.stop();
process.exit(failed ? 1 : 0);
