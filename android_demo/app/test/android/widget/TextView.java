package android.widget;

import android.content.Context;
import android.view.View;

public class TextView extends View {
    public Object fakeText = "";
    public int fakeLabelFor;

    public TextView(Context context) { super(context); }
    public void setText(CharSequence text) { fakeText = text; }
    public final void setText(int id) { fakeText = getContext().getString(id); }
    public void setTextSize(float size) {}
    public void setTextColor(int color) {}
    public void setTextIsSelectable(boolean selectable) {}
    public void setAllCaps(boolean caps) {}
    public void setLabelFor(int id) { fakeLabelFor = id; }
}
