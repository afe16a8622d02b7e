package edgespec.app;

import android.app.Activity;
import android.content.Intent;
import android.content.res.Resources;
import android.net.Uri;
import android.os.Bundle;
import android.os.Looper;
import android.view.FakeMenu;
import android.view.View;
import android.widget.CheckBox;
import android.widget.EditText;
import android.widget.TextView;
import java.awt.Color;
import java.awt.Font;
import java.awt.FontMetrics;
import java.awt.Graphics2D;
import java.awt.RenderingHints;
import java.awt.image.BufferedImage;
import java.io.File;
import java.util.ArrayList;
import java.util.List;

/**
 * A phone made of fakes with the unmodified app on it, and its user. The calling thread is Android's
 * main thread. The screen has 360 by 640 dp, the smallest usual size.
 */
final class Phone {
    private static final int WIDTH_DP = 360;
    private static final int HEIGHT_DP = 640;
    private static final int BAR_DP = 56;
    private static final long TIMEOUT_MS = 30000;

    final float density = 2;
    private final File resources;
    private final File folder;
    private boolean night;
    private float fontScale = 1;
    DemoApp app;
    ChatActivity activity;

    interface Condition {
        boolean holds();
    }

    /**
     * Makes a phone.
     *
     * @param resources the folder app/res
     * @param folder the app's files on disk
     */
    Phone(File resources, File folder) {
        this.resources = resources;
        this.folder = folder;
        startApp();
    }

    private Resources configuration() {
        return new Resources(resources, night, density, fontScale);
    }

    private void startApp() {
        app = new DemoApp();
        app.fakeStart(folder, configuration());
    }

    // What happens to the app

    /** Opens the app. */
    void launch() {
        activity = new ChatActivity();
        activity.fakeCreate(app, null);
    }

    /** Turns the phone: Android destroys the Activity and makes a new one from what it saved. */
    void rotate() {
        Bundle state = activity.fakeStop();
        app.fakeConfigure(configuration());
        activity = new ChatActivity();
        activity.fakeCreate(app, state);
    }

    /** Changes the theme or the font size, which has the same effect as turning the phone. */
    void configure(boolean dark, float letters) {
        night = dark;
        fontScale = letters;
        rotate();
    }

    /** Brings another app to the front. */
    void leave() {
        activity.fakeStop();
    }

    void comeBack() {
        activity.fakeStart();
    }

    /** Ends the process of the app in the background; what it had in memory is lost. */
    void endProcess() {
        activity = null;
        startApp();
    }

    /** Runs the main thread until the condition holds. */
    void until(String what, Condition condition) {
        long end = System.nanoTime() + TIMEOUT_MS * 1000000;
        try {
            while (!condition.holds()) {
                layOut();
                Looper.getMainLooper().fakeRunOne(20);
                if (System.nanoTime() > end) {
                    throw new AssertionError("it did not come to this: " + what + "; the screen shows "
                            + texts());
                }
            }
            do {
                layOut();
            } while (Looper.getMainLooper().fakeRunOne(0));
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
    }

    // What the user does

    View find(int id) {
        View found = activity.fakeContent.fakeFind(id);
        if (found == null) {
            throw new AssertionError("there is no view of id " + id);
        }
        return found;
    }

    void touch(int id) {
        find(id).fakeClick();
    }

    void write(int id, String text) {
        ((EditText) find(id)).setText(text);
    }

    void menu(int id) {
        if (!activity.onOptionsItemSelected(activity.fakeMenu.items.get(id))) {
            throw new AssertionError("nothing happens at this item of the menu");
        }
    }

    void ask(String question) {
        write(R.id.message, question);
        touch(R.id.send);
    }

    void setServer(String address, String key) {
        menu(R.id.settings);
        write(R.id.server, address);
        write(R.id.key, key);
        touch(R.id.save);
    }

    void tick(int id, boolean ticked) {
        if (((CheckBox) find(id)).isChecked() != ticked) {
            touch(id);
        }
    }

    /** Picks a file in the system's file picker, which the app must have opened. */
    void pick(File file) {
        if (activity.fakeAsked == null
                || !Intent.ACTION_OPEN_DOCUMENT.equals(activity.fakeAsked.getAction())) {
            throw new AssertionError("the app has not asked for a document");
        }
        activity.fakeResult(Activity.RESULT_OK, new Intent("").setData(Uri.parse(file.toURI().toString())));
    }

    // What the user sees

    String text(int id) {
        return ((TextView) find(id)).getText().toString();
    }

    List<View> views() {
        List<View> views = new ArrayList<View>();
        layOut();
        activity.fakeContent.fakeCollect(views);
        return views;
    }

    /** Returns the text of the newest entry of the conversation. */
    String lastText() {
        List<Entry> all = app.conversation.entries();
        return all.get(all.size() - 1).text.toString();
    }

    /** Returns all texts on the screen, from top to bottom. */
    List<String> texts() {
        List<String> texts = new ArrayList<String>();
        if (activity != null) {
            for (View view : views()) {
                if (view instanceof TextView) {
                    texts.add(((TextView) view).getText().toString());
                }
            }
        }
        return texts;
    }

    boolean shows(String part) {
        for (String text : texts()) {
            if (text.contains(part)) {
                return true;
            }
        }
        return false;
    }

    private int dp(int dp) {
        return Math.round(dp * density);
    }

    /** Lays out the views, as Android does before the next task if anything has changed. */
    private void layOut() {
        activity.fakeContent.fakeLayout(dp(WIDTH_DP), true, dp(HEIGHT_DP - BAR_DP));
    }

    /** Draws the window: the app's views as they are laid out here, below an action bar. */
    BufferedImage draw() {
        layOut();
        BufferedImage image = new BufferedImage(
                dp(WIDTH_DP), dp(HEIGHT_DP), BufferedImage.TYPE_INT_RGB);
        Graphics2D on = image.createGraphics();
        Resources colors = app.getResources();
        on.setRenderingHint(RenderingHints.KEY_ANTIALIASING, RenderingHints.VALUE_ANTIALIAS_ON);
        on.setRenderingHint(RenderingHints.KEY_TEXT_ANTIALIASING,
                RenderingHints.VALUE_TEXT_ANTIALIAS_ON);
        on.setColor(new Color(colors.fakeColor("background")));
        on.fillRect(0, 0, image.getWidth(), image.getHeight());
        drawBar(on, colors.fakeColor("bar"));
        on.translate(0, dp(BAR_DP));
        activity.fakeContent.fakeDraw(on);
        on.dispose();
        return image;
    }

    private void drawBar(Graphics2D on, int color) {
        on.setColor(new Color(color));
        on.fillRect(0, 0, dp(WIDTH_DP), dp(BAR_DP));
        on.setColor(Color.WHITE);
        on.setFont(new Font(Font.SANS_SERIF, Font.BOLD, dp(18)));
        on.drawString(activity.fakeTitle, dp(16), dp(35));
        int right = dp(WIDTH_DP - 36);
        for (int i = -1; i <= 1; i++) {
            on.fillOval(dp(WIDTH_DP - 22), dp(26 + 6 * i), dp(4), dp(4));
        }
        on.setFont(new Font(Font.SANS_SERIF, Font.PLAIN, dp(14)));
        FontMetrics metrics = on.getFontMetrics();
        for (FakeMenu.Item item : activity.fakeMenu.items.values()) {
            if (item.onBar) {
                String title = app.getString(item.title);
                right -= metrics.stringWidth(title);
                on.drawString(title, right, dp(33));
            }
        }
    }
}
