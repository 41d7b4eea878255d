'use strict';
// The dashboard of vernier serve.
let before = null, next = null, shown = null, logEnd = 0, metric = 'loss', points = [];

const timeText = (time) => time === null ? '' : new Date(time).toLocaleString();
const stateText = (job) => job.is_ending ? 'ending' : job.state + (job.attempt > 1 ? ', attempt ' + job.attempt : '');

// Rows are kept where they are, so that the keyboard's place in them stays.
function showJobs(jobs) {
  const rows = at('jobs');
  const known = new Map([...rows.children].map((row) => [row.dataset.id, row]));
  const wanted = jobs.map((job) => {
    let row = known.get(String(job.id));
    if (!row) {
      row = element('tr', undefined, {'data-id': job.id});
      const cell = element('td');
      cell.append(element('button', String(job.id), {type: 'button', 'aria-label': 'show job ' + job.id}));
      const choice = element('td');
      choice.append(element('input', undefined, {type: 'checkbox', 'aria-label': 'compare job ' + job.id}));
      row.append(cell, ...Array.from({length: 5}, () => element('td')), choice);
    }
    const texts = [job.name, job.user, stateText(job), timeText(job.created), job.error];
    texts.forEach((text, i) => { if (row.children[i + 1].textContent !== text) row.children[i + 1].textContent = text; });
    row.children[3].className = row.children[5].className = job.state === 'failed' ? 'failed' : '';
    if (job.id === shown) row.setAttribute('aria-current', 'true');
    else row.removeAttribute('aria-current');
    return row;
  });
  const isSame = wanted.length === rows.children.length && wanted.every((row, i) => row === rows.children[i]);
  if (!isSame) rows.replaceChildren(...wanted);
  if (jobs.length === 0) rows.replaceChildren(element('tr', 'there are no jobs'));
}

async function loadJobs() {
  const answer = await ask('/v1/jobs?limit=25' + (before === null ? '' : '&before=' + before));
  showJobs(answer.jobs);
  next = answer.next;
  at('older').disabled = next === null;
  at('newer').disabled = before === null;
  const server = await ask('/v1/server');
  const gpus = server.gpus === 0 ? '' : ', ' + server.gpus_in_use + ' of ' + server.gpus + ' GPUs';
  at('state').textContent = server.running + ' running, ' + server.queued + ' queued, ' + server.cores_in_use + ' of ' +
    server.cores + ' cores' + gpus;
}

function draw() {
  const curve = points.length > 0 ? curveOf(points) : {line: '', value: '', range: '', steps: ''};
  at('line').setAttribute('d', curve.line);
  for (const part of ['value', 'range', 'steps']) at(part).textContent = curve[part];
  at('chart').setAttribute('aria-label', metric + (points.length === 0 ? ': no values yet' :
                           ', now ' + curve.value + ', from ' + curve.range + ' in ' + curve.steps));
}

const drawSoon = onceAFrame(draw);

async function loadCurve(path) {
  const {metrics} = await ask(path + '/metrics');
  const select = at('metrics'), names = metrics.map((each) => each.name);
  for (const name of names) {
    if (![...select.options].some((option) => option.value === name)) select.append(element('option', name));
  }
  at('metric').textContent = metric;
  const has = names.includes(metric);
  points = has ? (await ask(path + '/history?points=512&metric=' + encodeURIComponent(metric))).points : [];
  draw();
}

async function loadLog(path) {
  const id = shown, from = logEnd;
  const answer = await ask(path + '/log?offset=' + from);
  if (answer.text === '' || id !== shown || from !== logEnd) return;
  const log = at('log'), isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 5;
  logEnd = answer.next;
  log.textContent = (log.textContent + answer.text).slice(-200000);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

async function loadJob() {
  const id = shown, path = '/v1/jobs/' + id;
  const job = await ask(path);
  let run = '';
  if (job.state === 'running') {
    try {
      const answer = await ask(path + '/run');
      run = (answer.state === 'running' ? '' : ', ' + answer.state) + ', step ' + answer.step + ' of ' + answer.steps;
    } catch { /* it has not begun */ }
  }
  if (id !== shown) return;
  at('job').hidden = false;
  at('job-title').textContent = 'Job ' + job.id + (job.name ? ': ' + job.name : '');
  at('summary').textContent = stateText(job) + run + (job.error ? ': ' + job.error : '') + '. ' + job.cores +
    (job.cores === 1 ? ' core, ' : ' cores, ') + job.gpus + ' GPUs, priority ' + job.priority +
    (job.started ? '. Started ' + timeText(job.started) : '') + (job.ended ? ', ended ' + timeText(job.ended) : '');
  at('config').textContent = job.config;
  const isOver = job.state !== 'queued' && job.state !== 'running';
  for (const button of at('actions').children) {
    const {command, action} = button.dataset;
    button.disabled = command ? job.state !== 'running' || job.is_ending :
      action === 'cancel' ? isOver || job.is_ending : job.state !== 'failed' && job.state !== 'cancelled';
  }
  await loadLog(path);
  await loadCurve(path);
}

async function load() {
  await loadJobs();
  if (shown !== null) await loadJob();
  if (!at('comparison').hidden) await compareJobs();
}

// Calls at once, and once more at the end where it was called meanwhile: events come faster than answers.
function inTurn(call) {
  let isRunning = false, isDue = false;
  return async () => {
    isDue = true;
    if (isRunning) return;
    isRunning = true;
    try {
      while (isDue) {
        isDue = false;
        await call();
      }
    } finally {
      isRunning = false;
    }
  };
}

const loadQuietly = inTurn(async () => {
  try {
    await load();
  } catch (error) {
    if (error.status === 401) return showLogin(error.message);
    if (error.status === 404 && shown !== null) { shown = null; at('job').hidden = true; return; }
    at('state').textContent = error.status ? error.message : 'not connected';
  }
});

const loadNewLog = inTurn(async () => {
  try {
    if (shown !== null) await loadLog('/v1/jobs/' + shown);
  } catch { /* the next event asks again */ }
});

function addNumbers(data) {
  addToComparison(data);
  if (data.job !== shown || data[metric] === undefined) return;
  points.push([data.step, data[metric], data[metric]]);
  if (points.length > 2048) loadQuietly();
  else drawSoon();
}

const handlers = {
  job: loadQuietly,
  removed: loadQuietly,
  gap: loadQuietly,
  step: addNumbers,
  log: (data) => { if (data.job === shown) loadNewLog(); },
  lost: () => { at('state').textContent = 'not connected'; },
};

function show(id) {
  shown = id;
  logEnd = 0;
  metric = 'loss';
  at('log').textContent = at('answer').textContent = '';
  at('metrics').replaceChildren(element('option', 'loss'));
  points = [];
  draw();
  loadQuietly().then(() => at('job-title').focus());
}

async function act(path, body, what) {
  const answer = at('answer');
  answer.className = '';
  answer.textContent = what + ' …';
  try {
    const done = await ask('/v1/jobs/' + shown + path, 'POST', body);
    answer.textContent = what + ': ' + (done.answer ? 'after step ' + done.step + ': ' + done.answer : stateText(done));
    if (done.state === 'refused') answer.className = 'bad';
  } catch (error) {
    answer.className = 'bad';
    answer.textContent = what + ': ' + error.message;
  }
  loadQuietly();
}

let confirmed = null;
function confirmThen(question, call) {
  at('question').textContent = question;
  confirmed = call;
  at('confirm').showModal();
}

at('jobs').addEventListener('click', (event) => {
  if (event.target.tagName === 'BUTTON') show(Number(event.target.textContent));
});
at('jobs').addEventListener('change', (event) => {
  const id = Number(event.target.closest('tr').dataset.id);
  choose(id, event.target.checked);
  event.target.checked = chosen.has(id);
});
at('older').addEventListener('click', () => { before = next; loadQuietly(); });
at('newer').addEventListener('click', () => { before = null; loadQuietly(); });
at('metrics').addEventListener('change', () => { metric = at('metrics').value; loadQuietly(); });
at('confirm').addEventListener('close', () => { if (at('confirm').returnValue === 'yes') confirmed(); });
at('actions').addEventListener('click', (event) => {
  const {command, action} = event.target.dataset;
  if (command === 'stop') {
    confirmThen('Stop the run? It is validated, saved and ended as done.', () => act('/commands', {command}, command));
  } else if (action === 'cancel') {
    confirmThen('Cancel the job? A run saves itself first.', () => act('/cancel', undefined, action));
  } else if (command) {
    act('/commands', {command}, command);
  } else if (action) {
    act('/' + action, undefined, action);
  }
});
at('submit').addEventListener('submit', async (event) => {
  event.preventDefault();
  const body = {config: at('toml').value, name: at('name').value, cores: Number(at('cores').value),
                gpus: Number(at('gpus').value), priority: Number(at('priority').value)};
  const answer = at('submitted');
  try {
    const job = await ask('/v1/jobs', 'POST', body);
    answer.className = '';
    answer.textContent = 'job ' + job.id + ' is ' + job.state;
    before = null;
    show(job.id);
  } catch (error) {
    answer.className = 'failed';
    answer.textContent = error.message;
  }
});
// A run that is paused by another person has no event here.
setInterval(() => { if (isConnected && !document.hidden && shown !== null) loadQuietly(); }, 15000);
start(load, handlers);
