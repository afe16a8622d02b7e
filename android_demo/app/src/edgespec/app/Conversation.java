package edgespec.app;

import android.content.Context;
import android.content.Intent;
import edgespec.Chat;
import edgespec.Listener;
import edgespec.Message;
import edgespec.Settings;
import edgespec.Stats;
import edgespec.VerifierException;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The conversation and the answer that is being generated. It belongs to the process and not to the
 * screen, so that turning the phone or leaving the app interrupts nothing; a file keeps it in case
 * Android ends the process. Any thread may call its methods.
 */
final class Conversation {
    /** Most tokens of an answer. */
    static final int MAX_TOKENS = 512;
    /** Number of tokens that the cache of the model on the phone can hold. */
    private static final int MODEL_CONTEXT = 4096;
    /** Nanoseconds between two writes of an unfinished answer to the file. */
    private static final long SAVED_EVERY_NS = 2000000000L;

    private final Context context;
    private final Changes changes;
    private final Transcript transcript;
    /** Runs everything that waits for the network or a model, one task after another. */
    private final ExecutorService worker = Executors.newSingleThreadExecutor();
    private final List<Entry> entries = new ArrayList<Entry>();
    private Answer answer;
    private Stats stats;
    private boolean saved = true;

    // Only the worker uses these, except that any thread may cancel the chat.
    private volatile Chat chat;
    private NativeModel model;
    private Choices chatChoices;
    private String modelTried = "";

    Conversation(Context context, Changes changes, File file) {
        this.context = context;
        this.changes = changes;
        this.transcript = new Transcript(file);
        restore();
    }

    private void restore() {
        try {
            if (transcript.read(entries)) {
                entries.add(new Entry(Entry.NOTE, context.getString(R.string.interrupted)));
            }
        } catch (IOException error) {
            entries.add(new Entry(Entry.ERROR, context.getString(R.string.unreadable, VerifierException.reason(error))));
        }
    }

    /** Sends a question and returns at once. Does nothing while another answer is generated. */
    synchronized void send(String question, final Choices choices) {
        if (answer != null) {
            return;
        }
        final List<Message> conversation = messages();
        conversation.add(new Message("user", question));
        final Answer coming = new Answer();
        entries.add(new Entry(Entry.QUESTION, question));
        entries.add(coming.entry);
        answer = coming;
        stats = null;
        context.startService(new Intent(context, AnswerService.class));
        worker.execute(new Runnable() {
            @Override
            public void run() {
                ask(conversation, choices, coming);
            }
        });
        changes.tell();
    }

    /** Stops the answer that is being generated, if any; its text so far stays. */
    synchronized void stop() {
        if (answer == null) {
            return;
        }
        answer.stopped = true;
        if (chat != null) {
            chat.cancel();
        }
    }

    /** Deletes the conversation and begins a new one. */
    synchronized void reset() {
        stop();
        answer = null;
        entries.clear();
        stats = null;
        worker.execute(new Runnable() {
            @Override
            public void run() {
                closeChat();
            }
        });
        save();
        changes.tell();
    }

    synchronized boolean isAnswering() { return answer != null; }

    /** Returns the statistics of the last answer, or null if there are none yet. */
    synchronized Stats stats() { return stats; }

    /** Returns a copy of the entries to show. */
    synchronized List<Entry> entries() {
        List<Entry> copy = new ArrayList<Entry>();
        for (Entry entry : entries) {
            copy.add(entry.copy());
        }
        return copy;
    }

    /** Writes the conversation to the file; adds an error to the conversation if that fails. */
    synchronized void save() {
        boolean before = saved;
        try {
            transcript.write(entries, answer != null);
            saved = true;
        } catch (IOException error) {
            saved = false;
            if (before) {
                entries.add(new Entry(Entry.ERROR, context.getString(R.string.unsaved, VerifierException.reason(error))));
                changes.tell();
            }
        }
    }

    /** Returns questions with their answers; a question without an answer is left out. */
    private List<Message> messages() {
        List<Message> messages = new ArrayList<Message>();
        String question = "";
        for (Entry entry : entries) {
            if (entry.kind == Entry.QUESTION) {
                question = entry.text.toString();
            } else if (entry.kind == Entry.ANSWER && entry.text.length() > 0) {
                messages.add(new Message("user", question));
                messages.add(new Message("assistant", entry.text.toString()));
            }
        }
        return messages;
    }

    // On the worker

    private void ask(List<Message> conversation, Choices choices, Answer coming) {
        try {
            open(choices, coming);
            if (!coming.stopped) {
                chat.send(conversation, coming);
            }
        } catch (RuntimeException error) {
            coming.onError("The app has a fault, please report it: " + error + ". What was said is kept.");
        } finally {
            coming.end();
        }
    }

    private void open(Choices choices, Answer coming) {
        // With its time of change, because a model that is copied anew has the same path.
        String wanted = choices.model + " " + new File(choices.model).lastModified();
        if (chat != null && choices.sameAs(chatChoices) && wanted.equals(modelTried)) {
            return;
        }
        closeChat();
        if (!wanted.equals(modelTried)) {
            modelTried = wanted;
            openModel(choices.model, coming);
        }
        Settings settings = new Settings();
        settings.server = choices.server;
        settings.key = choices.key;
        settings.folder = context.getCacheDir();
        settings.model = model;
        settings.maxTokens = MAX_TOKENS;
        chat = new Chat(settings);
        chatChoices = choices;
    }

    private void openModel(String path, Answer coming) {
        try {
            if (model != null) {
                model.close();
                model = null;
            }
            if (path.isEmpty()) {
                return;
            }
            model = NativeModel.open(new File(path), MODEL_CONTEXT);
        } catch (IOException error) {
            coming.onNote(VerifierException.reason(error));
        }
    }

    private void closeChat() {
        if (chat != null) {
            chat.close();
            chat = null;
        }
    }

    /** One answer while it is generated. It shows nothing if a new conversation has begun meanwhile. */
    private final class Answer implements Listener {
        final Entry entry = new Entry(Entry.ANSWER, "");
        volatile boolean stopped;
        private long savedAt = System.nanoTime();

        @Override
        public void onText(String text, boolean drafted) {
            synchronized (Conversation.this) {
                entry.append(text, drafted);
            }
            changes.tell();
            cancelIfStopped();
        }

        @Override
        public void onNote(String sentence) {
            add(new Entry(Entry.NOTE, sentence));
        }

        @Override
        public void onError(String sentence) {
            if (!stopped) { // after a stop, errors are expected
                add(new Entry(Entry.ERROR, sentence));
            }
        }

        @Override
        public void onStats(Stats figures) {
            synchronized (Conversation.this) {
                if (answer == this) {
                    stats = figures;
                    saveNowAndThen();
                }
            }
            changes.tell();
            cancelIfStopped();
        }

        /** Cancels the chat if the user stopped before send had begun, when there was nothing to cancel. */
        private void cancelIfStopped() {
            if (stopped) {
                chat.cancel();
            }
        }

        private void saveNowAndThen() {
            if (System.nanoTime() - savedAt > SAVED_EVERY_NS) {
                savedAt = System.nanoTime();
                save();
            }
        }

        void end() {
            synchronized (Conversation.this) {
                if (answer == this) {
                    answer = null;
                    sayWhyItEnded();
                    save();
                }
                if (answer == null) {
                    context.stopService(new Intent(context, AnswerService.class));
                }
            }
            changes.tell();
        }

        private void sayWhyItEnded() {
            if (stopped) {
                entries.add(new Entry(Entry.NOTE, context.getString(R.string.stopped)));
            } else if (stats != null && stats.finishReason.equals("length")) {
                entries.add(new Entry(Entry.NOTE, context.getString(R.string.cut, stats.tokens)));
            }
        }

        private void add(Entry said) {
            synchronized (Conversation.this) {
                if (answer == this) {
                    entries.add(said);
                }
            }
            changes.tell();
        }
    }
}
