package edgespec.app;

import android.content.Context;
import android.content.res.Resources;
import android.text.InputType;
import android.text.SpannableString;
import android.text.Spanned;
import android.text.style.ForegroundColorSpan;
import android.view.Gravity;
import android.view.View;
import android.view.ViewGroup;
import android.widget.Button;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.ScrollView;
import android.widget.TextView;
import edgespec.Stats;
import java.util.Collections;
import java.util.List;

/** Shows the conversation, the statistics of its last answer, and the line to write in. */
final class ChatScreen {
    final LinearLayout root;
    private final Context context;
    private final Conversation conversation;
    private final LinearLayout entries;
    private final ScrollView scroll;
    private final TextView figures;
    private final EditText message;
    private final Button send;
    private final Speaker speaker;
    private boolean showDrafts;

    /** @param onSend runs when the button is touched: it sends, or stops the answer that is generated */
    ChatScreen(Context context, Conversation conversation, View.OnClickListener onSend) {
        this.context = context;
        this.conversation = conversation;
        entries = Ui.column(context);
        entries.setId(R.id.entries);
        Ui.pad(entries, 12, 8);
        scroll = new ScrollView(context);
        scroll.addView(entries);
        figures = Ui.text(context, "", 13, R.color.quiet);
        figures.setId(R.id.figures);
        Ui.pad(figures, 16, 4);
        message = new EditText(context);
        message.setId(R.id.message);
        message.setHint(R.string.message);
        message.setInputType(InputType.TYPE_CLASS_TEXT | InputType.TYPE_TEXT_FLAG_CAP_SENTENCES
                | InputType.TYPE_TEXT_FLAG_MULTI_LINE);
        message.setMaxLines(6); // longer texts scroll
        Ui.touchable(message);
        Ui.style(message, 16, R.color.text);
        send = new Button(context);
        send.setId(R.id.send);
        send.setAllCaps(false);
        send.setOnClickListener(onSend);
        Ui.touchable(send);
        root = Ui.column(context);
        root.addView(scroll, new LinearLayout.LayoutParams(ViewGroup.LayoutParams.MATCH_PARENT, 0, 1));
        root.addView(figures, Ui.wide());
        root.addView(inputLine(), Ui.wide());
        speaker = new Speaker(root, conversation.entries());
    }

    private LinearLayout inputLine() {
        LinearLayout line = new LinearLayout(context);
        line.setGravity(Gravity.BOTTOM);
        Ui.pad(line, 12, 4);
        line.addView(message,
                new LinearLayout.LayoutParams(0, ViewGroup.LayoutParams.WRAP_CONTENT, 1));
        line.addView(send, Ui.small());
        return line;
    }

    /** Returns the text in the line and empties the line. */
    String takeMessage() {
        String text = message.getText().toString().trim();
        message.setText("");
        scrollToEnd();
        return text;
    }

    void showDrafts(boolean show) {
        showDrafts = show;
        entries.removeAllViews();
        refresh();
    }

    /** Shows the conversation as it is now. */
    void refresh() {
        boolean follow = isAtEnd();
        boolean answering = conversation.isAnswering(); // before entries(): then an ended answer is complete
        List<Entry> all = conversation.entries();
        showEntries(all.isEmpty() ? welcome() : all);
        send.setText(answering ? R.string.stop : R.string.send);
        figures.setText(figures(conversation.stats(), answering));
        speaker.speak(all, answering);
        if (follow) {
            scrollToEnd();
        }
    }

    private List<Entry> welcome() {
        return Collections.singletonList(new Entry(Entry.NOTE, context.getString(R.string.welcome)));
    }

    private void showEntries(List<Entry> all) {
        for (int i = 0; i < all.size(); i++) {
            Entry entry = all.get(i);
            Entry shown = i < entries.getChildCount() ? (Entry) entries.getChildAt(i).getTag() : null;
            if (shown == null || shown.kind != entry.kind) {
                entries.removeViews(i, entries.getChildCount() - i);
                entries.addView(view(entry), params(entry));
            }
            if (shown == null || !entry.text.toString().contentEquals(shown.text)) {
                fill((TextView) entries.getChildAt(i), entry);
            }
        }
        entries.removeViews(all.size(), entries.getChildCount() - all.size());
    }

    private TextView view(Entry entry) {
        int color = entry.kind == Entry.ERROR ? R.color.error
                : entry.kind == Entry.NOTE ? R.color.quiet : R.color.text;
        TextView view = Ui.text(context, "", entry.kind == Entry.NOTE ? 14 : 16, color);
        view.setTextIsSelectable(true);
        Ui.pad(view, entry.kind == Entry.QUESTION ? 12 : 4, 8);
        if (entry.kind == Entry.QUESTION) {
            view.setBackground(Ui.bubble(context, R.color.question));
        }
        return view;
    }

    private LinearLayout.LayoutParams params(Entry entry) {
        boolean question = entry.kind == Entry.QUESTION;
        LinearLayout.LayoutParams params = question ? Ui.small() : Ui.wide();
        params.gravity = question ? Gravity.END : Gravity.START;
        params.topMargin = Ui.dp(context, question ? 12 : 4);
        params.setMarginStart(Ui.dp(context, question ? 48 : 0));
        return params;
    }

    private void fill(TextView view, Entry entry) {
        String text = entry.text.toString();
        view.setTag(entry);
        view.setText(shaded(entry, text));
        // An answer without text yet takes no space.
        view.setVisibility(text.isEmpty() ? View.GONE : View.VISIBLE);
        if (entry.kind == Entry.QUESTION) {
            view.setContentDescription(context.getString(R.string.you_said, text));
        } else if (entry.kind == Entry.ANSWER) {
            view.setContentDescription(context.getString(R.string.answer, text));
        }
    }

    private CharSequence shaded(Entry entry, String text) {
        if (!showDrafts || entry.drafted.length == 0) {
            return text;
        }
        SpannableString shaded = new SpannableString(text);
        for (int i = 0; i < entry.drafted.length; i += 2) {
            shaded.setSpan(new ForegroundColorSpan(context.getColor(R.color.accepted)),
                    entry.drafted[i], entry.drafted[i + 1], Spanned.SPAN_EXCLUSIVE_EXCLUSIVE);
        }
        return shaded;
    }

    private String figures(Stats stats, boolean answering) {
        Resources strings = context.getResources();
        if (stats == null || stats.tokens == 0) {
            return strings.getString(answering ? R.string.waiting : R.string.no_figures);
        }
        String line = strings.getString(R.string.rate, stats.tokensPerSecond) + " · ";
        line += stats.drafted == 0 ? strings.getString(R.string.nothing_drafted)
                : strings.getString(R.string.accepted, 100 * stats.acceptanceRate, stats.drafted);
        return line + " · " + (stats.source.equals("device") ? strings.getString(R.string.on_device)
                : strings.getString(R.string.round_trip, stats.roundTripMs));
    }

    private boolean isAtEnd() {
        return scroll.getScrollY() + scroll.getHeight() >= entries.getHeight() - Ui.dp(context, 48);
    }

    /** Scrolls after the next layout, when the height of the entries is known. */
    private void scrollToEnd() {
        scroll.post(new Runnable() {
            @Override
            public void run() {
                scroll.scrollTo(0, entries.getHeight());
            }
        });
    }
}
