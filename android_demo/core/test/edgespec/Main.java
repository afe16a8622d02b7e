package edgespec;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Runs the core on a command line, for tests: it sends every line of its input and prints what the
 * listener receives as JSON lines. Each line is a conversation of its own unless --chat is given.
 *
 * <pre>java edgespec.Main --server ws://... [--key K] [--max-tokens N] [--temperature T] [--seed S]
 * [--timeout MS] [--chat] &lt; questions</pre>
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException, JSONException {
        Settings settings = new Settings();
        boolean oneConversation = false;
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i].equals("--chat")) {
                oneConversation = true;
            } else {
                set(settings, arguments[i], arguments[++i]);
            }
        }
        ask(settings, oneConversation);
    }

    private static void set(Settings settings, String name, String value) {
        switch (name) {
            case "--server": settings.server = value; break;
            case "--key": settings.key = value; break;
            case "--max-tokens": settings.maxTokens = Integer.parseInt(value); break;
            case "--temperature": settings.temperature = Double.parseDouble(value); break;
            case "--seed": settings.seed = Long.parseLong(value); break;
            case "--timeout": settings.timeoutMs = Integer.parseInt(value); break;
            default: throw new IllegalArgumentException("there is no option " + name);
        }
    }

    private static void ask(Settings settings, boolean oneConversation) throws IOException, JSONException {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Chat chat = new Chat(settings);
        List<Message> conversation = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            conversation.add(new Message("user", line));
            Printer answer = new Printer(out);
            Stats stats = chat.send(conversation, answer);
            conversation.add(new Message("assistant", answer.text.toString()));
            out.println(new JSONObject().put("done", stats.finishReason).put("tokens", stats.tokens)
                    .put("drafted", stats.drafted).put("accepted", stats.accepted));
            if (!oneConversation) {
                chat.close();
                chat = new Chat(settings);
                conversation.clear();
            }
        }
        chat.close();
    }

    private static final class Printer implements Listener {
        private final PrintStream out;
        private final StringBuilder text = new StringBuilder();

        Printer(PrintStream out) {
            this.out = out;
        }

        private void print(String name, String text) {
            out.println("{\"" + name + "\":" + JSONObject.quote(text) + "}");
        }

        @Override
        public void onText(String more, boolean drafted) {
            text.append(more);
            print("text", more);
        }

        @Override
        public void onNote(String sentence) {
            print("note", sentence);
        }

        @Override
        public void onStats(Stats stats) {} // the line that is printed at the end has them

        @Override
        public void onError(String sentence) {
            print("error", sentence);
        }
    }
}
