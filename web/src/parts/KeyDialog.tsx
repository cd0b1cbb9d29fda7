import { useEffect, useId, useRef } from "react";

/** Asks for the API key that the server wants. It is kept until the tab is closed. */
export function KeyDialog({ message, submit }: { readonly message: string; submit(key: string): void }) {
  const id = useId();
  const dialog = useRef<HTMLDialogElement>(null);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby={`${id}-title`} onCancel={(event) => event.preventDefault()}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit(input.current?.value.trim() ?? "");
        }}
      >
        <h2 id={`${id}-title`}>This server asks for a key</h2>
        <p className="quiet">{message}</p>
        <label htmlFor={`${id}-key`}>API key</label>
        <input id={`${id}-key`} ref={input} type="password" required autoComplete="off" />
        <button type="submit" className="primary">
          Go on
        </button>
      </form>
    </dialog>
  );
}
