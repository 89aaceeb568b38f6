// chat_test.mjs: the chat page in headless Chromium. usage: node chat_test.mjs BUILD [CASE]; pictures go to BUILD/web-chat.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { build, endlessModel, run, serve, until } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { chromium } = require('playwright-core');
const server = await serve('--model', endlessModel(50000), '--model-name', 'duckling'); // nobody is too late to stop an answer
const profile = mkdtempSync(path.join(tmpdir(), 'duckd-chat-'));
const pictures = path.join(build, 'web-chat');
mkdirSync(pictures, { recursive: true });
const context = await chromium.launchPersistentContext(profile, {
    executablePath: '/usr/bin/chromium', headless: true, viewport: { width: 1100, height: 720 }, locale: 'en-US',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const page = await context.newPage();
page.setDefaultTimeout(60000);
const complaints = [];
page.on('pageerror', (e) => complaints.push(e.message));
page.on('console', (m) => { if (m.type() === 'error') complaints.push(m.text()); });
page.on('request', (r) => { if (!r.url().startsWith(server.url) && !r.url().startsWith('data:')) complaints.push(`asks for ${r.url()}`); });

const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const last = () => page.locator('.turn.assistant').last();
const done = () => page.waitForFunction(() => ['Send', '发送'].includes(document.getElementById('go').textContent));
async function say(text) {
    await page.fill('#text', text);
    await page.keyboard.press('Enter');
    await done();
    await page.waitForTimeout(50);
}

const failed = await run({
    async 'send and stream'() {
        await page.goto(server.url);
        await say('What is a duck?');
        assert.equal((await last().textContent()).trim(), duck);
        assert.match(await page.textContent('#figures'), /TTFT \d+ ms · [\d.]+ tok\/s · drafts accepted \d+% · \d+\/\d+ cached/);
        assert.match(await page.getAttribute('#figures', 'title'), /TTFT: time to the first token/);
        await page.screenshot({ path: path.join(pictures, 'first.png') });
    },
    async 'second turn, from the cache'() {
        await page.click('#new');
        await say('My name is Anna. What is 7 times 8?');
        await say('What is my name?');
        assert.match(await last().textContent(), /Anna/);
        const [, cached, prompt] = (await page.textContent('#figures')).match(/(\d+)\/(\d+) cached/).map(Number);
        assert.ok(cached > 8 && cached < prompt);
    },
    async 'stop'() {
        await page.route('**/v1/chat/completions', async (route) => {
            const body = { ...route.request().postDataJSON(), logit_bias: { 1: -100 } };
            await route.continue({ postData: JSON.stringify(body) });
        });
        await page.fill('#text', 'Tell me a short story about a cat.');
        await page.keyboard.press('Enter');
        await page.waitForFunction(() => document.querySelector('.entry:last-child .turn.assistant')?.textContent.length > 40);
        assert.equal(await page.textContent('#go'), 'Stop');
        await page.keyboard.press('Escape');
        await done();
        await page.unroute('**/v1/chat/completions');
        await until('it says so', async () => (await last().textContent()).includes('(stopped)'));
        await until('the lane is free', async () => (await (await fetch(`${server.url}/metrics.json`)).json()).running === 0);
    },
    async 'who reads further up stays there, with what is selected'() {
        const long = Array.from({ length: 60 }, (_, i) => `Paragraph ${i} of a long answer.`);
        await page.evaluate((parts) => { // a stream that goes on when it is told to
            window.realFetch = window.fetch;
            window.fetch = (url, options) => {
                if (!String(url).includes('completions')) return window.realFetch(url, options);
                const send = (c, text, reason = null) => c.enqueue(new TextEncoder().encode(`data: ${JSON.stringify({ choices: [{ delta: { content: text }, finish_reason: reason }] })}\n\n`));
                return Promise.resolve(new Response(new ReadableStream({ start(c) {
                    send(c, parts.slice(0, 40).join('\n\n'));
                    window.more = () => send(c, '\n\n' + parts.slice(40).join('\n\n'));
                    window.stopStream = (whole) => { if (whole) c.enqueue(new TextEncoder().encode('data: [DONE]\n\n')); c.close(); };
                } })));
            };
        }, long);
        await page.click('#new');
        await page.fill('#text', 'long');
        await page.keyboard.press('Enter');
        await page.waitForFunction(() => document.querySelectorAll('.entry:last-child p').length >= 40);
        const place = () => page.evaluate(() => { const t = document.getElementById('talk'); return { top: Math.round(t.scrollTop), left: t.scrollHeight - t.scrollTop - t.clientHeight, selected: String(getSelection()) }; });
        await until('it follows', async () => (await place()).left < 5);
        assert.equal(await page.locator('#down').isVisible(), false);
        await page.evaluate(() => {
            document.getElementById('talk').scrollTop = 100;
            getSelection().selectAllChildren(document.querySelectorAll('.entry:last-child p')[3]);
        });
        const before = await place();
        await page.evaluate(() => window.more());
        await page.waitForFunction(() => document.querySelectorAll('.entry:last-child p').length >= 60);
        const after = await place();
        assert.deepEqual({ ...after, left: 0 }, { ...before, left: 0 });
        assert.equal(after.selected, 'Paragraph 3 of a long answer.');
        await page.click('#down');
        assert.ok((await place()).left < 5);
        await page.evaluate(() => window.stopStream(false));
        await done();
        assert.match(await last().locator('.error').textContent(), /broke off/);
        await page.evaluate(() => { window.fetch = window.realFetch; });
    },
    async 'copy, answer again, edit'() {
        await page.click('#new');
        await say('What is a duck?');
        await page.evaluate(() => { Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true }); window.copied = []; window.labels = []; new MutationObserver((all) => all.forEach((m) => window.labels.push(m.target.textContent))).observe(document.getElementById('talk'), { childList: true, subtree: true }); document.execCommand = (what) => window.copied.push([what, getSelection().toString() || document.activeElement.value]); });
        const button = (entry, name) => page.locator('.entry').nth(entry).getByRole('button', { name });
        await button(1, 'Copy').click();
        assert.deepEqual(await page.evaluate(() => window.copied), [['copy', duck]]);
        assert.ok((await page.evaluate(() => window.labels)).includes('Copied')); // for a moment
        await button(1, 'Answer again').click();
        await done();
        assert.equal((await last().textContent()).trim(), duck);
        assert.equal(await page.locator('.entry').count(), 2);
        await say('Hello');
        await page.locator('.entry').first().hover();
        await button(0, 'Edit').click();
        assert.equal(await page.inputValue('#text'), 'What is a duck?');
        await page.keyboard.press('Escape');
        assert.equal(await page.inputValue('#text'), '');
        assert.equal(await page.locator('.entry').count(), 4);
        await button(0, 'Edit').click();
        await say('My name is Anna. What is 7 times 8?');
        assert.equal(await page.locator('.entry').count(), 2);
        assert.doesNotMatch(await last().textContent(), /swimming bird/);
        page.once('dialog', (d) => d.accept());
        await page.locator('#list li').first().getByRole('button', { name: /^Delete/ }).click();
        page.once('dialog', (d) => d.accept());
        await page.locator('#list li').first().getByRole('button', { name: /^Delete/ }).click();
    },
    async 'reload keeps the conversations'() {
        await page.locator('#list .open').first().click();
        const turns = await page.locator('.turn').count();
        await page.reload();
        assert.equal(await page.locator('.turn').count(), turns);
        assert.equal(await page.locator('#list li').count(), 2);
        await page.locator('#list .open').last().click();
        assert.equal((await last().textContent()).trim(), duck);
    },
    async 'thoughts, settings'() {
        await page.click('#new');
        await page.click('#settings');
        await page.check('#s-think');
        await page.click('dialog button');
        await say('Is 91 prime?');
        assert.match(await last().locator('details').textContent(), /divisible by 7/);
        assert.match(await last().textContent(), /No, 91 is not prime/);
        await page.click('#settings');
        await page.uncheck('#s-think');
        await page.click('dialog button');
    },
    async 'what a model writes is text, never markup'() {
        await page.evaluate(() => { window.hit = false; });
        const evil = '<img src=x onerror="window.hit=true"> <script>window.hit=true</scr' + 'ipt>\n\n**bold** `code` [l](https://a.example) [j](javascript:window.hit=true)\n\n```js\nlet x = "<b>";\n```\n\n- one\n  1. inner\n- two\n\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |';
        await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream',
            body: `data: ${JSON.stringify({ choices: [{ delta: { content: evil }, finish_reason: null }] })}\n\ndata: [DONE]\n\n` }));
        await say('evil');
        await page.unroute('**/v1/chat/completions');
        assert.equal(await page.evaluate(() => window.hit), false);
        assert.equal(await last().locator('img, script').count(), 0);
        assert.match(await last().textContent(), /<img src=x onerror/);
        assert.equal(await last().locator('strong').textContent(), 'bold');
        assert.equal(await last().locator('pre code').textContent(), 'let x = "<b>";');
        assert.equal(await last().locator('ul > li').count(), 2);
        assert.equal(await last().locator('ul > li > ol > li').textContent(), 'inner');
        assert.equal(await last().locator('blockquote').textContent(), 'said');
        assert.equal(await last().locator('td').count(), 2);
        assert.equal(await last().locator('a').count(), 1);
    },
    async 'Chinese, at phone width'() {
        await page.setViewportSize({ width: 390, height: 780 });
        await page.click('#lang');
        await page.click('#menu');
        await page.click('#new');
        await say('你好');
        assert.equal((await last().textContent()).trim(), '你好！我是小鸭，一个很小的语言模型。');
        assert.equal(await page.textContent('#go'), '发送');
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing sticks out');
        await page.screenshot({ path: path.join(pictures, 'phone.png') });
        await page.click('#menu');
        await page.waitForFunction(() => /鸭群/.test(document.getElementById('flock').textContent));
        assert.match(await page.getAttribute('#figures', 'title'), /TTFT：首个词元/);
        assert.match(await page.locator('#flock div', { hasText: '通道' }).getAttribute('title'), /后端（本机/);
        await page.screenshot({ path: path.join(pictures, 'phone-menu.png') });
        // Nothing on the page stays in the other language until the server answers again.
        const flock = () => page.evaluate(() => { document.getElementById('lang').click(); return document.getElementById('flock').textContent; });
        assert.match(await flock(), /^ducklingFlock: 1 duck · \d running · \d waitingLanes: 8 · backend \d+% · flock \d+%/);
        assert.match(await flock(), /^duckling鸭群: 1 只鸭子 · \d 运行/);
        await page.keyboard.press('Escape');
        await page.click('#lang');
        await page.setViewportSize({ width: 1100, height: 720 });
    },
    async 'an error is shown'() {
        await page.click('#new');
        await say('duck '.repeat(60000));
        assert.match(await last().locator('.error').textContent(), /maximum context length/);
        await until('it is in sight', () => page.evaluate(() => { const t = document.getElementById('talk'); return t.scrollHeight - t.scrollTop - t.clientHeight < 5; }));
        complaints.splice(0, complaints.length, ...complaints.filter((c) => !/status of 400/.test(c)));
    },
    async 'what the flock lacks is said, and no longer when it is back'() {
        const line = '1 of 1 ducks lost, and the flock cannot answer until udp-0 is back';
        await page.route('**/metrics.json', (route) => route.fulfill({ json: { ready: false } }));
        await page.route('**/health', (route) => route.fulfill({ status: 503, json: { error: { message: line, type: 'server_error', param: null, code: 'no_ducks' } } }));
        await page.waitForFunction((text) => document.getElementById('flock').textContent === text, line);
        await page.unroute('**/metrics.json');
        await page.unroute('**/health');
        await page.waitForFunction(() => document.querySelectorAll('#flock tr').length > 0);
        complaints.splice(0, complaints.length, ...complaints.filter((c) => !/status of 503/.test(c)));
    },
    async 'by keyboard alone'() {
        await page.keyboard.press('Alt+n');
        await page.keyboard.type('Hello');
        await page.keyboard.press('Enter');
        await done();
        await page.waitForFunction(() => /Duckling/.test(document.querySelector('.turn.assistant')?.textContent));
        await page.keyboard.press('Alt+n');
        await page.locator('#list .open').last().click();
        await page.waitForFunction(() => document.querySelectorAll('#flock tr').length > 0);
        await page.screenshot({ path: path.join(pictures, 'desktop.png') });
    },
    async 'no complaints, nothing fetched from elsewhere'() {
        assert.deepEqual(complaints, []);
    },
});
await context.close();
rmSync(profile, { recursive: true, force: true });
await server.stop();
process.exit(failed ? 1 : 0);
