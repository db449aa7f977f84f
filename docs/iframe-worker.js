/* Browsers start no workers from files. A site that is opened from its folder searches in a hidden frame in their place;
   one that comes from a server never gets here. The theme knows it by its name. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      inside.importScripts = async (...urls) => {
        for (const each of urls) await load(inside.document, each)
      }
      this.ready = load(inside.document, url)
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }

  const load = (document, url) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = () => reject(new Error(`${url} could not be loaded`))
      document.body.append(script)
    })
}
