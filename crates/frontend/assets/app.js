"use strict";

// Saving without leaving the page. Without this script the form posts by itself.
(() => {
  const form = document.getElementById("create");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const fields = ["body", "title", "syntax", "lifetime"];
  const button = byId("save");
  const status = byId("status");

  // A key belongs to one content: the same content again is a retry and sends the same key, also
  // when another content was tried in between; another content is another paste and gets a new one.
  // A key stays until it has its answer: it may have been saved when it looked as if it had not.
  const keys = new Map();
  let inFlight = false;

  // crypto.randomUUID is missing on plain http; getRandomValues is not.
  function newKey() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  }

  function content() {
    const request = {};
    for (const name of fields) {
      const value = byId(name).value;
      if (value !== "") request[name] = value;
    }
    return JSON.stringify(request);
  }

  function sentence(text) {
    return /^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) + "." : text + ".";
  }

  function say(text, retry) {
    status.textContent = text;
    if (retry) {
      const again = document.createElement("button");
      again.type = "button";
      again.textContent = "Retry";
      again.addEventListener("click", save);
      status.append(again);
    }
  }

  function show(answer) {
    say("");
    byId("link").value = answer.url;
    byId("token").value = answer.delete_token;
    byId("open").href = "/" + answer.id;
    byId("delete-link").href = "/" + answer.id + "/delete";
    byId("expires").textContent = " on " + answer.expires_at.slice(0, 16).replace("T", " ") + " UTC";
    byId("result").hidden = false;
    byId("link").focus();
    byId("link").select();
  }

  async function save() {
    if (inFlight) return;
    const size = new TextEncoder().encode(byId("body").value).length;
    if (size > Number(form.dataset.sizeMax)) {
      say("The paste has " + size + " bytes; at most " + form.dataset.sizeMax + " are possible.");
      return;
    }
    const request = content();
    if (!keys.has(request)) keys.set(request, newKey());
    inFlight = true;
    button.disabled = true;
    byId("result").hidden = true;
    say("Saving…");
    try {
      const response = await fetch("/api/v1/pastes", {
        method: "POST",
        headers: {
          "Content-Type": "application/json",
          "Accept": "application/json",
          "Idempotency-Key": keys.get(request),
        },
        body: request,
        cache: "no-store",
      });
      const answer = await response.json();
      // After a 409 the key belongs to another request: it can never save this one.
      if (response.status === 201 || response.status === 409) keys.delete(request);
      if (response.status === 201) {
        show(answer);
      } else {
        const again = response.status >= 500 || response.status === 408 || response.status === 409;
        say(answer.title + ". " + sentence(answer.detail), again);
        if (fields.includes(answer.field)) byId(answer.field).focus();
      }
    } catch {
      say("No answer. Your text is still here; a retry saves it once.", true);
    } finally {
      inFlight = false;
      button.disabled = false;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  window.addEventListener("beforeunload", (event) => {
    if (inFlight) event.preventDefault();
  });
})();

// Copying, where the browser allows it: on https and on localhost.
(() => {
  if (!navigator.clipboard) return;
  const copies = (element, text) => {
    const label = element.textContent;
    element.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text());
        element.textContent = "Copied";
      } catch {
        element.textContent = "Not copied";
      }
      setTimeout(() => { element.textContent = label; }, 1500);
    });
    element.hidden = false;
  };
  for (const element of document.querySelectorAll("[data-copy]")) {
    copies(element, () => document.getElementById(element.dataset.copy).value);
  }
  for (const element of document.querySelectorAll("[data-copy-text]")) {
    copies(element, () => element.dataset.copyText);
  }
  for (const element of document.querySelectorAll("[data-needs-clipboard]")) {
    element.hidden = false;
  }
})();
