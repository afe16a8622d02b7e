package edgespec;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Locale;
import org.json.JSONObject;

/**
 * Runs the core on a command line, for tests: it sends every line of its input and prints what the
 * listener receives as JSON lines. Each line is a conversation of its own unless --chat is given.
 *
 * <pre>java edgespec.Main --server ws://... [--key K] [--max-tokens N] [--temperature T] [--seed S]
 * [--timeout MS] [--folder F] [--chat] &lt; questions</pre>
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException {
        Settings settings = new Settings();
        boolean one = false;
        for (int i = 0; i < arguments.length; i++) {
            String name = arguments[i];
            if (name.equals("--chat")) {
                one = true;
            } else if (i + 1 < arguments.length) {
                set(settings, name, arguments[++i]);
            } else {
                throw new IllegalArgumentException(name + " wants a value");
            }
        }
        ask(settings, one);
    }

    private static void set(Settings settings, String name, String value) {
        if (name.equals("--server")) {
            settings.server = value;
        } else if (name.equals("--key")) {
            settings.key = value;
        } else if (name.equals("--max-tokens")) {
            settings.maxTokens = Integer.parseInt(value);
        } else if (name.equals("--temperature")) {
            settings.temperature = Double.parseDouble(value);
        } else if (name.equals("--seed")) {
            settings.seed = Long.parseLong(value);
        } else if (name.equals("--timeout")) {
            settings.timeoutMs = Integer.parseInt(value);
        } else if (name.equals("--folder")) {
            settings.folder = new File(value);
        } else {
            throw new IllegalArgumentException("there is no option " + name);
        }
    }

    private static void ask(Settings settings, boolean one) throws IOException {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Chat chat = new Chat(settings, new ArrayList<Message>());
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Stats stats = chat.send(line, new Printer(out));
            out.println("{\"done\":" + JSONObject.quote(stats.finishReason) + figures(stats) + "}");
            if (!one) {
                chat.close();
                chat = new Chat(settings, new ArrayList<Message>());
            }
        }
        chat.close();
    }

    private static String figures(Stats stats) {
        return String.format(Locale.ROOT, ",\"tokens\":%d,\"drafted\":%d,\"accepted\":%d,"
                + "\"tokens_per_second\":%.2f,\"round_trip_ms\":%.2f", stats.tokens, stats.drafted,
                stats.accepted, stats.tokensPerSecond, stats.roundTripMs);
    }

    private static final class Printer implements Listener {
        private final PrintStream out;

        Printer(PrintStream out) {
            this.out = out;
        }

        @Override
        public void onText(String text, boolean drafted) {
            out.println("{\"text\":" + JSONObject.quote(text) + ",\"drafted\":" + drafted + "}");
        }

        @Override
        public void onNote(String sentence) {
            out.println("{\"note\":" + JSONObject.quote(sentence) + "}");
        }

        @Override
        public void onStats(Stats stats) {
            // the line that is printed at the end has them
        }

        @Override
        public void onError(String sentence) {
            out.println("{\"error\":" + JSONObject.quote(sentence) + "}");
        }
    }
}
